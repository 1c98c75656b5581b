"""From a complete list of processors, built by transformers or `SamplingParams`, to what a step samples with."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor

from multidraft.sampling.processors import SHIFT_SAFE_PROCESSORS, WARPERS, Processors, check_known, for_row, name_of
from multidraft.sampling.settings import Sampling


def before_warpers(processors: Sequence[LogitsProcessor], extra: Sequence[LogitsProcessor]) -> list[LogitsProcessor]:
    """The list with more processors where transformers puts those of a user."""
    first = next(
        (i for i, processor in enumerate(processors) if name_of(processor) in SHIFT_SAFE_PROCESSORS), len(processors)
    )
    return [*processors[:first], *extra, *processors[first:]]


def override(
    processors: Sequence[LogitsProcessor], extra: Sequence[LogitsProcessor]
) -> tuple[list[LogitsProcessor], list[LogitsProcessor]]:
    """The list with a user's processors in place of those of the same class, and the user's other processors.

    As in transformers, a user's warper does not replace one.
    """
    by_class = {
        type(processor): processor for processor in reversed(extra) if name_of(processor) not in SHIFT_SAFE_PROCESSORS
    }
    result = [by_class.get(type(processor), processor) for processor in processors]
    replaced = [processor for processor in result if processor not in processors]
    return result, [processor for processor in extra if processor not in replaced]


def sampling_from(processors: Sequence[LogitsProcessor], greedy: bool, row: int = 0) -> Sampling:
    """The sampling of a row: what comes before the warpers, their numbers, and what comes after.

    Temperature, top-k, top-p and min-p are taken out, because there is faster code for them. Without others, no
    processor is ever called. Raises AdviceError on a processor that cannot work on a tree.
    """
    check_known(processors)
    listed = for_row(processors, row)
    names = [name_of(processor) for processor in listed]
    first = next((i for i, name in enumerate(names) if name in WARPERS), len(names))
    is_usual = all(map(is_shift_safe, listed[first:])) and "TemperatureLogitsWarper" not in names[first + 1 :]
    if greedy or not is_usual:  # the list runs as it is
        return Sampling(0 if greedy else 1.0, before=Processors(listed) if listed else None)
    rest = list(listed[first:])
    temperature = take(rest, "TemperatureLogitsWarper", "temperature") or 1.0
    top_k, top_p = take(rest, "TopKLogitsWarper", "top_k"), take(rest, "TopPLogitsWarper", "top_p")
    min_p = take(rest, "MinPLogitsWarper", "min_p") or None
    if rest and name_of(rest[-1]) == "LogitNormalization":
        rest.pop()
    before, after = (Processors(part) if part else None for part in (listed[:first], rest))
    return Sampling(temperature, top_k, top_p, min_p=min_p, before=before, after=after)


def is_shift_safe(processor: LogitsProcessor) -> bool:
    """Whether a constant added to all logits changes nothing; not where tokens get a finite score in place of -inf.

    A top-p of 0, which is no number of ours, counts as none.
    """
    forbids = getattr(processor, "filter_value", -torch.inf) == -torch.inf
    return name_of(processor) in SHIFT_SAFE_PROCESSORS and forbids and getattr(processor, "top_p", None) != 0


def take(rest: list[LogitsProcessor], name: str, attribute: str) -> Any:
    """Remove the first processor if it is of that kind and may leave a single token, and return its number."""
    if not rest or name_of(rest[0]) != name or getattr(rest[0], "min_tokens_to_keep", 1) != 1:
        return None
    return getattr(rest.pop(0), attribute)
