"""Prompts are read: both models keep all of each but its last token, the root of the first tree.

Where the target reads that one as well, it has said all that the first new token is drawn from: the first step then
drafts nothing, and takes no pass of its own. Prompts of similar lengths are read together, which pads little.
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
from multidraft.models import LanguageModel, Scored
from multidraft.models.compiled import CompiledCausalLM
from multidraft.models.huggingface import CausalLM, Model, place_of
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
    whole: bool = False,
) -> State:
    """Both models read all of each prompt but its last token, which is the root of the first tree.

    Processors, where they look back, see `seen` in place of the prompts. `sampling` gives every row settings of its
    own, in place of the plan's. The target reads prompts as a `whole` where that is asked for.
    """
    groups = grouped([len(prompt) for prompt in prompts], cost_on(place_of(target_model)))
    growth, pairs, said = longest - max(map(len, prompts)), [], []
    for rows in groups:
        own = [prompts[row] for row in rows]
        pairs.append(readers(target_model, draft_model, plan, max(map(len, own)) + growth))
        said.append(read_all(*pairs[-1], own, whole, info))
    order = torch.tensor([row for rows in groups for row in rows]).argsort()
    target, draft = (joined(parts, order) for parts in zip(*pairs, strict=True))
    assert target is not None
    answers = torch.cat(said)[order.to(said[0].device)] if whole else None
    return at_roots(target, draft, prompts, plan, generator, seen, sampling, answers)


def read_all(
    target: LanguageModel, draft: LanguageModel | None, prompts: list[list[int]], whole: bool, info: Info
) -> Float[Tensor, "batch scored vocabulary"]:
    """Both readers keep all of each prompt but its last token; or the target the whole, and its logits there."""
    roots = [prompt[:-1] for prompt in prompts]
    with info.watch.part("target"):
        said = read_texts(target, prompts if whole else roots, "last" if whole else False)
    if draft is not None:
        with info.watch.part("draft"):
            read_texts(draft, roots)
    return said


def read_texts(
    reader: LanguageModel, texts: list[list[int]], logits: Scored = False
) -> Float[Tensor, "batch scored *drafters vocabulary"]:
    """Keep these, which end together, piece by piece; the last logits, if asked for."""
    tokens, lengths = padded(texts, left=True), torch.tensor([len(text) for text in texts])[:, None]
    size = tokens.shape[1]
    for first in range(0, max(size, 1), CHUNK):  # once at least, which settles the number of rows
        done = (lengths - size + first).clamp(min=0)
        scores = read(reader, tokens[:, first : first + CHUNK], done, first + CHUNK >= size and logits)
    return scores


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
    reader: LanguageModel,
    chunk: Int[Tensor, "batch new"],
    done: Int[Tensor, "batch 1"] | int,
    logits: Scored = False,
) -> Float[Tensor, "batch scored *drafters vocabulary"]:
    """Keep a piece of texts, of which so many tokens are `done`; -1 fills rows up at their left. Logits, if asked for.

    What fills up stands at position 1, where no text begins, and sees itself alone.
    """
    column, empty = torch.arange(chunk.shape[1]), (chunk < 0).sum(1, keepdim=True)
    position = torch.where(chunk >= 0, done + column - empty, 1)
    visible = torch.ones((chunk.shape[1],) * 2, dtype=torch.bool).tril() & (chunk >= 0)[:, None]
    visible |= torch.eye(chunk.shape[1], dtype=torch.bool)
    tokens, position, visible = (each.to(reader.device) for each in (chunk.clamp(min=0), position, visible))
    scores = reader.forward(tokens, position, visible, logits)
    reader.keep(torch.where(column + empty < chunk.shape[1], column + empty, -1))
    return scores[:, -1:] if logits == "last" else scores


def at_roots(
    target: LanguageModel,
    draft: LanguageModel | None,
    prompts: list[list[int]],
    plan: Plan,
    generator: torch.Generator | list[torch.Generator] | None,
    seen: list[list[int]] | None = None,
    sampling: list[Sampling] | None = None,
    said: Float[Tensor, "batch 1 vocabulary"] | None = None,
) -> State:
    """The state in which the readers have read all of each prompt but its last token, or the target what it `said`."""
    sampling = list(sampling or [plan.sampling] * len(prompts))
    if len(sampling) != len(prompts):
        raise AdviceError(f"there are {len(prompts)} prompts and {len(sampling)} settings; give one for each prompt")
    roots, positions = [prompt[-1] for prompt in prompts], [len(prompt) - 1 for prompt in prompts]
    random, unread = for_rows(generator, len(prompts)), [list[int]()] * len(prompts)
    prefixes = begun(seen or prompts, sampling, target.device)
    return State(target, draft, random, roots, positions, unread, sampling, prefixes, said)


def begun(sequences: list[list[int]], sampling: list[Sampling], device: torch.device) -> Prefixes | None:
    """The sequences of the rows whose settings look back, if there are any."""
    looking = [own.looks_back for own in sampling]
    if not any(looking):
        return None
    rows = enumerate(zip(sequences, looking, strict=True))
    return [Prefix(row, torch.tensor(tokens, device=device)) if looks else None for row, (tokens, looks) in rows]
