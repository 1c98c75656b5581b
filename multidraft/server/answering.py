"""One request's answers as they grow: events of the engine's thread become pieces of text, in the order they come."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from multidraft.decoding.metrics import Info, tally
from multidraft.decoding.record import Logprob
from multidraft.generation.text import IncrementalDetokenizer
from multidraft.server.bodies import Sampled
from multidraft.server.doors import LateError
from multidraft.server.rows import Ended, Event, Failed, Job, Read, Stepped
from multidraft.server.service import Service

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Piece:
    """A token: what it adds to the text, and how it came to be."""

    token: int
    text: str
    kind: str
    logprob: Logprob | None = None


def joined(pieces: Iterable[Piece]) -> str:
    """The text of all pieces."""
    return "".join(piece.text for piece in pieces)


class Text:
    """Pieces come in, and go out as soon as no stop string can begin in them; the first `least` tokens end nothing."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", prompt: list[int], stops: Sequence[str] = (), least: int = 0
    ):
        self.reader, self.stops, self.least = IncrementalDetokenizer(tokenizer, prompt), stops, least
        self.held, self.stopped = list[Piece](), False

    def add(self, piece: Piece) -> list[Piece]:
        """One more token, whose text is found here; what can be shown now that it is known."""
        self.held.append(replace(piece, text=self.reader.add(piece.token)))
        self.least -= 1
        text, stops = joined(self.held), self.stops if self.least < 0 else ()
        ends = [place for stop in stops if (place := text.find(stop)) >= 0]
        self.stopped = bool(ends)
        return self.let_go(min(ends) if ends else len(text) - max((overlap(text, stop) for stop in stops), default=0))

    def close(self) -> list[Piece]:
        """What was held back."""
        if self.stopped:
            return []
        rest, self.held = self.held, []
        last = self.reader.close()
        return [*rest, Piece(-1, last, "corrected")] if last else rest

    def let_go(self, count: int) -> list[Piece]:
        """The pieces within the first characters; the one that reaches beyond stays, or is cut at a stop string."""
        free: list[Piece] = []
        while self.held and len(self.held[0].text) <= count:
            count -= len(self.held[0].text)
            free.append(self.held.pop(0))
        return [*free, replace(self.held[0], text=self.held[0].text[:count])] if self.stopped and count else free


def overlap(text: str, stop: str) -> int:
    """The length of the longest end of a text that a stop string begins with, but for all of it.

    >>> overlap("to be", "begin")
    2
    """
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)


@dataclass(frozen=True)
class Delta:
    """What one event adds to an answer."""

    index: int
    pieces: list[Piece]
    finish: str | None = None
    step: Stepped | None = None  # where a tree was drafted


@dataclass
class Choice:
    """One answer so far."""

    job: Job
    text: Text
    tokens: int = 0
    finish: str | None = None
    last: float = field(default_factory=time.monotonic)  # when tokens came


class Answering:
    """All answers to one request. Leave it with `cancel`, or the engine goes on for nobody."""

    def __init__(self, service: Service, body: Sampled, jobs: list[Job]):
        self.service, self.body = service, body
        self.began, self.info, least = time.monotonic(), Info(), body.min_tokens or 0
        self.events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self.choices = [Choice(job, Text(service.tokenizer, job.prompt, body.stops, least)) for job in jobs]
        for index, job in enumerate(jobs):
            job.hear = partial(self.hear, index)
        service.engine.submit(jobs)
        service.queues.add(self.events)

    def hear(self, index: int, event: Event) -> None:
        """One more event, in the event loop's thread."""
        self.events.put_nowait((index, event))

    async def deltas(self) -> AsyncIterator[Delta]:
        """What comes, until all have ended; raises what the engine raised for one of them."""
        try:
            while any(choice.finish is None for choice in self.choices):
                index, event = await self.next_event()
                choice = self.choices[index]
                if isinstance(event, Failed):
                    raise event.error
                if choice.finish is None and (delta := self.delta(index, choice, event)):
                    yield delta
        finally:
            self.cancel()

    async def next_event(self) -> tuple[int, Event]:
        """Wait for it, within the time that a request may take."""
        try:
            async with asyncio.timeout(self.service.limits.request + self.began - time.monotonic()):
                return await self.events.get()
        except TimeoutError:
            raise LateError from None

    def cancel(self) -> None:
        """Nobody listens any more."""
        self.service.queues.discard(self.events)
        for choice in self.choices:
            choice.job.cancelled = True

    def delta(self, index: int, choice: Choice, event: Event) -> Delta | None:
        """What an event adds, if it is anything to show."""
        pieces, step, reason = list[Piece](), None, None
        if isinstance(event, Read) and getattr(self.body, "echo", False):
            pieces = self.echoed(choice.job, event)
        elif isinstance(event, Stepped):
            pieces, step = self.stepped(choice, event), event
            reason = "stop" if choice.text.stopped else None
        elif isinstance(event, Ended):
            pieces, reason = choice.text.close(), event.reason
        if reason is not None:
            choice.finish, choice.job.cancelled = reason, True
            self.service.metrics.ended(reason, time.monotonic() - self.began)
        return Delta(index, pieces, reason, step) if pieces or reason else None

    def echoed(self, job: Job, event: Read) -> list[Piece]:
        """The prompt, where it is to be repeated: its first token has no probability."""
        reader, pairs = Text(self.service.tokenizer, []), zip_longest(job.prompt, [None, *event.logprobs])
        return [piece for token, log in pairs for piece in reader.add(Piece(token, "", "prompt", log))]

    def stepped(self, choice: Choice, step: Stepped) -> list[Piece]:
        """A step's tokens, as far as they can be shown."""
        self.count(choice, step)
        shown: list[Piece] = []
        for token, kind, log in zip_longest(step.new.tokens, step.new.kinds, step.new.logprobs):
            choice.tokens += 1
            shown += choice.text.add(Piece(token, "", kind, log))
            if choice.text.stopped:
                break
        return shown

    def count(self, choice: Choice, step: Stepped) -> None:
        """Note the numbers and the times of a step."""
        self.info.accepted += len(step.path)
        self.info.row_passes += 1
        if len(step.tokens) > 1:
            self.info.drafts, self.info.nodes = self.info.drafts + 1, self.info.nodes + len(step.tokens) - 1
            tally(self.info.lengths, len(step.path), step.depth)
        now, seconds = time.monotonic(), self.service.metrics.seconds
        if not choice.tokens:
            seconds["time_to_first_token_seconds"].observe(now - self.began)
        else:
            seconds["inter_token_latency_seconds"].observe((now - choice.last) / max(len(step.new.tokens), 1))
        choice.last = now

    def usage(self) -> dict[str, int]:
        """How many tokens were read and emitted so far."""
        prompts = [choice.job.prompt for choice in self.choices[:: self.body.choices]]
        read, new = sum(map(len, prompts)), sum(choice.tokens for choice in self.choices)
        return {"prompt_tokens": read, "completion_tokens": new, "total_tokens": read + new}
