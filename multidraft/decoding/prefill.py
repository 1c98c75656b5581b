"""Prompts are read: both models keep all of each but its last token, the root of the first tree."""

import torch
from transformers import PreTrainedModel

from multidraft.decoding.metrics import Info
from multidraft.decoding.randomness import for_rows
from multidraft.decoding.state import Plan, State, padded
from multidraft.errors import AdviceError
from multidraft.models import LanguageModel
from multidraft.models.causal_lm import CausalLM, Model
from multidraft.models.compiled import CompiledCausalLM
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
    sampling = list(sampling or [plan.sampling] * len(prompts))
    if len(sampling) != len(prompts):
        raise AdviceError(f"there are {len(prompts)} prompts and {len(sampling)} settings; give one for each prompt")
    capacity = longest + 2 * plan.shape.most_slots + 2
    with info.watch.part("target"):
        target = reading(target_model, prompts, capacity)
    with info.watch.part("draft"):
        kind = CompiledCausalLM if plan.compile_draft else CausalLM
        draft = reading(draft_model, prompts, capacity, target.vocabulary, kind) if draft_model is not None else None
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


def reading(
    model: Model,
    prompts: list[list[int]],
    capacity: int,
    vocabulary: int | None = None,
    kind: type[CausalLM] = CausalLM,
) -> LanguageModel:
    """The model as the loop needs it, over the target's vocabulary, with the prompts kept in its cache."""
    reader = kind(model, capacity) if isinstance(model, PreTrainedModel) else model.fresh(capacity)
    reader = fitted(reader, vocabulary or reader.vocabulary)
    tokens = padded([prompt[:-1] for prompt in prompts]).to(reader.device)
    for first in range(0, max(tokens.shape[1], 1), CHUNK):  # once at least, which settles the number of rows
        chunk = tokens[:, first : first + CHUNK]
        position = torch.arange(first, first + chunk.shape[1], device=reader.device)
        causal = torch.ones((chunk.shape[1],) * 2, dtype=torch.bool, device=reader.device).tril()
        reader.forward(chunk.clamp(min=0), position.expand_as(chunk), causal.expand(len(chunk), -1, -1), logits=False)
        reader.keep(torch.where(chunk >= 0, position - first, -1).cpu())
    return reader
