"""The chunks of a streamed answer: how many tokens each has, by what the server says, and when it came."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from multidraft_judge.asking.dialects import entries_of

Event = tuple[float, dict[str, Any]]  # when it came, in seconds, and what it says


class Chunk(NamedTuple):
    """Tokens that came together, which at most servers are those of one step."""

    tokens: int
    seconds: float  # when the last of them came


@dataclass(frozen=True)
class Answer:
    """A streamed answer as its chunks; the first one holds what the pass over the prompt gave."""

    chunks: list[Chunk]
    text: str = ""

    @property
    def largest(self) -> int:
        """Tokens of its largest chunk, the first one left out."""
        return max((chunk.tokens for chunk in self.chunks[1:]), default=0)

    def whole_chunks(self, max_tokens: int, largest: int) -> list[Chunk]:
        """The chunks after the first that began with room for the largest one, so that `max_tokens` has cut none.

        Which ones these are hangs on the chunks before them alone, so that their mean has no bias (Wald's identity).
        """
        whole, total = list[Chunk](), self.chunks[0].tokens if self.chunks else 0
        for chunk in self.chunks[1:]:
            if total > max_tokens - largest:
                break
            whole.append(chunk)
            total += chunk.tokens
        return whole

    @property
    def tokens_per_second(self) -> float | None:
        """Of the stream after the first chunk; None where nothing followed, or all came at once."""
        tokens = sum(chunk.tokens for chunk in self.chunks[1:])
        seconds = self.chunks[-1].seconds - self.chunks[0].seconds if self.chunks else 0.0
        return tokens / seconds if tokens and seconds > 0 else None


def by_usage(events: Sequence[Event]) -> list[Chunk] | None:
    """By `usage.completion_tokens` of every event with text (vLLM, SGLang, multidraft); None if one lacks it."""
    counts = [(seconds, (event.get("usage") or {}).get("completion_tokens")) for seconds, event in events]
    if any(text_of(event) and count is None for (_, event), (_, count) in zip(events, counts, strict=True)):
        return None
    known = [(0.0, 0), *((seconds, count) for seconds, count in counts if count is not None)]
    return [Chunk(count - before, seconds) for (_, before), (seconds, count) in pairwise(known) if count > before]


def by_timings(events: Sequence[Event]) -> list[Chunk] | None:
    """By llama.cpp's `timings`: it sends a token an event, and those of one step have one `predicted_ms`."""
    chunks, last, total = list[Chunk](), None, 0
    for seconds, event in events:
        timings = event.get("timings") or {}
        count, clock = timings.get("predicted_n"), timings.get("predicted_ms")
        if count is None or clock is None:
            if text_of(event):
                return None
            continue
        if count > total:
            together = chunks.pop().tokens if chunks and clock == last else 0
            chunks.append(Chunk(together + count - total, seconds))
        last, total = clock, max(count, total)
    return chunks


def by_logprobs(events: Sequence[Event]) -> list[Chunk] | None:
    """By the tokens that each event lists; None if one has text and lists none, or none lists any."""
    chunks = list[Chunk]()
    for seconds, event in events:
        count = sum(len(list(entries_of(choice))) for choice in choices_of(event))
        if text_of(event) and not count:
            return None
        if count:
            chunks.append(Chunk(count, seconds))
    return chunks


class Way(NamedTuple):
    """A way to count tokens: fields of a request that it needs, and how it counts them."""

    name: str
    fields: dict[str, Any]
    chunks_of: Callable[[Sequence[Event]], list[Chunk] | None]


USAGE = Way("usage", {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}, by_usage)
TIMINGS = Way("timings", {"timings_per_token": True}, by_timings)
LOGPROBS = Way("log-probabilities", {"logprobs": 1}, by_logprobs)


def ways_of(dialect: str) -> tuple[Way, ...]:
    """The ways that may count a server's tokens, the one that costs it least first."""
    return (TIMINGS,) if dialect == "llamacpp" else (USAGE, LOGPROBS)


def choices_of(event: dict[str, Any]) -> list[dict[str, Any]]:
    """The first choice of an event, if it has any."""
    return (event.get("choices") or [])[:1]


def text_of(event: dict[str, Any]) -> str:
    """The text of an event."""
    return "".join(choice.get("text") or "" for choice in choices_of(event))


def answer_of(events: Iterable[Event], way: Way) -> Answer | None:
    """The answer that some events make; None if the way cannot count them."""
    events = list(events)
    chunks = way.chunks_of(events)
    return None if chunks is None else Answer(chunks, "".join(text_of(event) for _, event in events))
