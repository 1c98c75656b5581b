"""Lists of processors taken apart, into the sampling that they amount to."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from multidraft.sampling.processors import AFTER, WARPERS, Processors, name_of
from multidraft.sampling.settings import Sampling


@dataclass
class Parts:
    """A list of processors, taken apart."""

    before: list[LogitsProcessor]
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    after: list[LogitsProcessor] = field(default_factory=list)


def samplings_from(lists: Sequence[LogitsProcessorList], greedy: bool) -> list[Sampling]:
    """The sampling of each prompt that its list of processors amounts to; prompts that share a list share theirs.

    Temperature, top-k and top-p are taken out, because we have faster code for them; with nothing else, no processor
    is ever called.
    """
    made = {id(listed): sampling_from(listed, greedy) for listed in lists}
    return [made[id(listed)] for listed in lists]


def sampling_from(listed: Sequence[LogitsProcessor], greedy: bool) -> Sampling:
    """The sampling that one list amounts to."""
    if greedy:
        return Sampling(0, before=Processors(listed) if listed else None)
    parts = split(listed)
    before, after = (Processors(part) if part else None for part in (parts.before, parts.after))
    return Sampling(parts.temperature, parts.top_k, parts.top_p, before, after)


def split(processors: Sequence[LogitsProcessor]) -> Parts:
    """Temperature, top-k and top-p, what comes before them and what comes after."""
    names = [name_of(processor) for processor in processors]
    first = next((i for i, name in enumerate(names) if name in WARPERS), len(names))
    parts = Parts(list(processors[:first]), after=list(processors[first:]))
    if not set(names[first:]) <= AFTER:  # an order that nobody expects: let it run as it stands
        return Parts(list(processors))
    parts.temperature = take(parts.after, "TemperatureLogitsWarper", "temperature") or 1.0
    parts.top_k = take(parts.after, "TopKLogitsWarper", "top_k")
    parts.top_p = take(parts.after, "TopPLogitsWarper", "top_p") or None
    if parts.after and name_of(parts.after[-1]) == "LogitNormalization":
        parts.after.pop()
    return parts


def take(rest: list[LogitsProcessor], name: str, attribute: str) -> Any:
    """Remove the first processor if it is of that kind, and return its number."""
    if not rest or name_of(rest[0]) != name or getattr(rest[0], "filter_value", -torch.inf) != -torch.inf:
        return None
    return getattr(rest.pop(0), attribute)
