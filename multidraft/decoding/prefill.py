"""Prompts are read: both models keep all of each but its last token, the root of the first tree.

Those of similar lengths are read together, which pads little.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from multidraft.decoding.metrics import Info
from multidraft.decoding.randomness import for_rows
from multidraft.decoding.state import Plan, State, padded
from multidraft.errors import AdviceError
from multidraft.models import LanguageModel
from multidraft.models.causal_lm import CausalLM, Model, place_of
from multidraft.models.compiled import CompiledCausalLM
from multidraft.models.lanes import cost_on, grouped
from multidraft.models.resized import fitted
from multidraft.sampling.prefixes import Prefix, Prefixes
from multidraft.sampling.settings import Sampling

CHUNK = 512  # prompt tokens a forward pass: bounds the memory of the attention mask


def start(
    prompts: list[list[int]],
    target_model: Model,
    draft_model: Model | None,
    plan: Plan,
    longest: int,
    generator: torch.Generator | list[torch.Generator] | None,
    info: Info,
    seen: list[list[int]] | None = None,
    sampling: list[Sampling] | None = None,
) -> State:
    """Both models read all of each prompt but its last token, which is the root of the first tree.

    Processors, where they look back, see `seen` in place of the prompts. `sampling` gives every row settings of its
    own, in place of the plan's.
    """
    groups = grouped([len(prompt) for prompt in prompts], cost_on(place_of(target_model)))
    growth, pairs = longest - max(map(len, prompts)), []
    for rows in groups:
        own = [prompts[row] for row in rows]
        pairs.append(readers(target_model, draft_model, plan, max(map(len, own)) + growth))
        read_all(*pairs[-1], own, info)
    order = torch.tensor([row for rows in groups for row in rows]).argsort()
    target, draft = (joined(parts, order) for parts in zip(*pairs, strict=True))
    assert target is not None
    return at_roots(target, draft, prompts, plan, generator, seen, sampling)


def read_all(target: LanguageModel, draft: LanguageModel | None, prompts: list[list[int]], info: Info) -> None:
    """Both readers keep all of each prompt but its last token."""
    tokens = padded([prompt[:-1] for prompt in prompts])
    for name, reader in ("target", target), ("draft", draft):
        with info.watch.part(name):
            for first in range(0, max(tokens.shape[1], 1), CHUNK):  # once at least, which settles the number of rows
                if reader is not None:
                    read(reader, tokens[:, first : first + CHUNK], first)


def joined(readers: Sequence[LanguageModel | None], order: Int[Tensor, " batch"]) -> LanguageModel | None:
    """One reader of all rows, in this order."""
    whole, *others = readers
    if whole is None:
        return None
    for other in others:
        whole.join(other)
    if order.tolist() != sorted(order.tolist()):
        whole.select(order.to(whole.device))
    return whole


def readers(
    target_model: Model, draft_model: Model | None, plan: Plan, longest: int
) -> tuple[LanguageModel, LanguageModel | None]:
    """Both models as the loop needs them, over the target's vocabulary, with nothing read."""
    capacity = capacity_of(plan, longest)
    target = reader_of(target_model, capacity, plan.compile)
    if draft_model is None:
        return target, None
    return target, fitted(reader_of(draft_model, capacity, plan.compile), target.vocabulary)


def capacity_of(plan: Plan, longest: int) -> int:
    """Slots for a sequence of so many tokens, with the trees that are pending beside it."""
    return longest + 2 * plan.shape.most_slots + 2


def reader_of(model: Model, capacity: int, compiled: bool = False) -> LanguageModel:
    """The model with an empty cache of its own."""
    if not isinstance(model, PreTrainedModel):
        return model.fresh(capacity)
    return CompiledCausalLM(model, capacity) if compiled else CausalLM(model, capacity)


def read(
    reader: LanguageModel, chunk: Int[Tensor, "batch new"], first: int, logits: bool = False
) -> Float[Tensor, "batch scored *drafters vocabulary"]:
    """Keep a piece of the prompts that begins at position `first`; -1 fills rows up. Their logits, if asked for."""
    chunk = chunk.to(reader.device)
    position = torch.arange(first, first + chunk.shape[1], device=reader.device)
    causal = torch.ones((chunk.shape[1],) * 2, dtype=torch.bool, device=reader.device).tril()
    tokens, visible = chunk.clamp(min=0), causal.expand(len(chunk), -1, -1)
    scores = reader.forward(tokens, position.expand_as(chunk), visible, logits)
    reader.keep(torch.where(chunk >= 0, position - first, -1).cpu())
    return scores


def at_roots(
    target: LanguageModel,
    draft: LanguageModel | None,
    prompts: list[list[int]],
    plan: Plan,
    generator: torch.Generator | list[torch.Generator] | None,
    seen: list[list[int]] | None = None,
    sampling: list[Sampling] | None = None,
) -> State:
    """The state in which the readers have read all of each prompt but its last token."""
    sampling = list(sampling or [plan.sampling] * len(prompts))
    if len(sampling) != len(prompts):
        raise AdviceError(f"there are {len(prompts)} prompts and {len(sampling)} settings; give one for each prompt")
    root = torch.tensor([p[-1] for p in prompts], device=target.device)
    position = torch.tensor([len(p) - 1 for p in prompts], device=target.device)
    random, unread = for_rows(generator, len(prompts)), [list[int]()] * len(prompts)
    prefixes = begun(seen or prompts, sampling, root.device)
    return State(target, draft, random, root, position, unread, sampling, prefixes)


def begun(sequences: list[list[int]], sampling: list[Sampling], device: torch.device) -> Prefixes | None:
    """The sequences of the rows whose settings look back, if there are any."""
    looking = [own.looks_back for own in sampling]
    if not any(looking):
        return None
    rows = enumerate(zip(sequences, looking, strict=True))
    return [Prefix(row, torch.tensor(tokens, device=device)) if looks else None for row, (tokens, looks) in rows]
