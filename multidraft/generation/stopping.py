"""Where rows end: what `generate` is told, and what transformers has prepared, as limits, a `Stop` and a deadline."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerBase, StoppingCriteria
from transformers.generation import EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria

from multidraft.decoding.request import Stop
from multidraft.errors import AdviceError
from multidraft.generation.text import StopSearch
from multidraft.sampling.params import SamplingParams


class Ends(NamedTuple):
    """Where all rows of a call end."""

    budgets: list[int]  # new tokens by row
    stops: list[Stop]  # by row; without stop strings all rows share one
    padded_prompts: list[list[int]]  # what criteria and processors see before the new tokens
    deadline: float = float("inf")  # of time.monotonic(): the pass in which it falls is the last, and is kept

    @property
    def device(self) -> torch.device:
        """Where processors and criteria expect a sequence."""
        return self.stops[0].device


def stops_by_row(
    stop: Stop, params: SamplingParams, tokenizer: PreTrainedTokenizerBase | None, prompts: list[list[int]]
) -> list[Stop]:
    """A `stop` for the text behind each prompt, with its own search for stop strings if there are any."""
    if not params.stop:
        return [stop] * len(prompts)
    if tokenizer is None:
        raise AdviceError(
            "stop strings need the tokenizer; pass it as stop_tokenizer (model.generate keeps `tokenizer` to itself)"
        )
    strings = [params.stop] if isinstance(params.stop, str) else params.stop
    searches = [StopSearch(tokenizer, prompt, strings, params.min_new_tokens or 0) for prompt in prompts]
    return [replace(stop, completes_string=search.completes_string) for search in searches]


def ends_from_criteria(
    criteria: Sequence[StoppingCriteria], prompts: list[list[int]], budgets: list[int], device: torch.device
) -> Ends:
    """Where rows end by a list that `model.generate` has prepared for prompts of these (padded) tokens."""
    tokens, others, deadline = set[int](), [], float("inf")
    for criterion in criteria:
        if type(criterion) is MaxLengthCriteria:
            budgets = [min(b, criterion.max_length - len(p)) for b, p in zip(budgets, prompts, strict=True)]
        elif type(criterion) is EosTokenCriteria:
            tokens |= set(criterion.eos_token_id.tolist())
        elif type(criterion) is MaxTimeCriteria:
            deadline = min(deadline, after(criterion.initial_timestamp + criterion.max_time - time.time()))
        else:
            others.append(criterion)
    return Ends(budgets, [Stop(frozenset(tokens), others, device)] * len(prompts), prompts, deadline)


def after(seconds: float | int) -> float:
    """The deadline that is so many seconds from now; setting the clock on the wall does not move it."""
    return time.monotonic() + seconds
