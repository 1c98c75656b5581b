"""Where rows end: limits, a `Stop` and a deadline, by what `generate` is told; stop strings, found as texts grow."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from transformers import PreTrainedTokenizerBase, StoppingCriteria
from transformers.generation import EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria

from multidraft.decoding.request import Stop
from multidraft.errors import AdviceError
from multidraft.generation.text import IncrementalDetokenizer
from multidraft.sampling.params import SamplingParams

Tag = TypeVar("Tag")  # what comes with a token


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


class StopSearch:
    """Looks for stop strings in new text as it grows, with special tokens in it; it keeps what may be a beginning.

    What ends within the first `min_tokens` is none.
    """

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", context: Sequence[int], stops: Sequence[str], min_tokens: int = 0
    ):
        self.detokenizer = IncrementalDetokenizer(tokenizer, context, skip_special=False)
        self.stops, self.min_tokens, self.num_tokens = stops, min_tokens, 0
        self.tail, self.length = "", 0  # of the text: its end, in which a stop string may begin, and its length

    def add(self, token: int) -> range | None:
        """Add a token; returns the place of the first stop string in the text, if there is one now."""
        piece = self.detokenizer.add(token)
        text, self.num_tokens, self.length = self.tail + piece, self.num_tokens + 1, self.length + len(piece)
        known = len(self.tail)  # with what ends there it has been seen
        firsts = [(text.find(stop, max(known - len(stop) + 1, 0)), len(stop)) for stop in self.stops]
        found = [(place, size) for place, size in firsts if place >= 0]
        if found and self.num_tokens > self.min_tokens:
            place, size = min(found)
            start = self.length - len(text) + place
            return range(start, start + size)
        held = max((overlap(text, stop) for stop in self.stops), default=0)
        self.tail = text[len(text) - held :]
        return None

    def completes_string(self, token: int) -> bool:
        """Add a token; returns whether a stop string is complete."""
        return self.add(token) is not None


class Span(NamedTuple):
    """A token's text, where it ends in the text with special tokens, and what the caller keeps beside it."""

    tag: Any
    text: str
    end: int


class TextReader(Generic[Tag]):
    """The text of new tokens up to the first stop string, piece by piece, each with the caller's tag of its token.

    Stop strings match the text with special tokens, and pieces come without these, once no stop string can begin in
    them. `keeps_stop` shows the stop string, too.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        context: Sequence[int],
        stops: Sequence[str] = (),
        min_tokens: int = 0,
        keeps_stop: bool = False,
    ):
        self.detokenizer = IncrementalDetokenizer(tokenizer, context)
        self.search = StopSearch(tokenizer, context, stops, min_tokens) if stops else None
        self.held, self.stopped, self.keeps_stop = deque[Span](), False, keeps_stop

    def add(self, token: int, tag: Tag) -> list[tuple[Tag, str]]:
        """Add a token; returns the tags and texts that are certain now."""
        text = self.detokenizer.add(token)
        if self.search is None:
            return [(tag, text)]
        stop = self.search.add(token)
        self.held.append(Span(tag, text, self.search.length))
        if stop is None:
            return self.release(self.search.length - len(self.search.tail))
        self.stopped = True
        return self.release(stop.stop if self.keeps_stop else stop.start)

    def release(self, end: int) -> list[tuple[Tag, str]]:
        """Release the spans up to here, and of the one in which a stop string begins what is before it."""
        released = list[tuple[Tag, str]]()
        while self.held and self.held[0].end <= end:
            released.append(self.held.popleft()[:2])
        if self.stopped and self.held:
            tag, text, last = self.held[0]
            kept = text[: max(len(text) - (last - end), 0)]
            released += [(tag, kept)] if kept else []
        return released

    def close(self) -> list[tuple[Tag | None, str]]:
        """What is held back, unless a stop string ended the text; the end of an incomplete character has no tag."""
        if self.stopped:
            return []
        rest = self.detokenizer.close()
        return [*((span.tag, span.text) for span in self.held), *([(None, rest)] if rest else [])]


def overlap(text: str, stop: str) -> int:
    """The length of the longest suffix of the text that is a proper prefix of the stop string.

    >>> overlap("to be", "begin")
    2
    """
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)
