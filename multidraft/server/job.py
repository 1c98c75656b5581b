"""One row's work, and what its owner hears of it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from multidraft.decoding.record import Emitted, Logprob
from multidraft.decoding.stopping import Stopping
from multidraft.sampling.settings import Sampling


@dataclass(frozen=True)
class Read:
    """The prompt has been read: log-probabilities of all its tokens but the first, if they were asked for."""

    logprobs: list[Logprob]


@dataclass(frozen=True)
class Stepped:
    """One step's tokens, the tree that was drafted (the root alone where nothing was), and the accepted path in it.

    Of the tree there are its tokens and the places of their parents: an event may wait for long, and is small.
    """

    new: Emitted
    tokens: list[int]
    parents: list[int]
    path: list[int]


@dataclass(frozen=True)
class Ended:
    """The last event of a row that went well: "stop" at an end of text, "length" at its limit."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """The last event of one that did not."""

    error: BaseException


Event = Read | Stepped | Ended | Failed


@dataclass(eq=False)
class Job:
    """A prompt to continue, with settings and random numbers of its own; its owner hears what becomes of it."""

    prompt: list[int]
    new_tokens: int
    hear: Callable[[Event], object] = lambda event: None
    sampling: Sampling = field(default_factory=Sampling)
    generator: torch.Generator = field(default_factory=torch.Generator)
    ends: set[int] = field(default_factory=set)
    logprobs: int | None = None  # of emitted tokens, and of so many of the most likely ones
    prompt_logprobs: int | None = None  # the same of the prompt's tokens
    cancelled: bool = False
    tokens: list[int] = field(default_factory=list)  # so far

    @property
    def longest(self) -> int:
        """The number of tokens that it may come to."""
        return len(self.prompt) + self.new_tokens

    def cut(self, new: Emitted) -> tuple[Emitted, str | None]:
        """A step's tokens up to the row's end, and the reason if that is reached."""
        new, goes_on = Stopping([self.new_tokens], self.ends).cut(0, self.tokens, new)
        self.tokens += new.tokens
        if goes_on:
            return new, None
        return new, "stop" if new.tokens and new.tokens[-1] in self.ends else "length"


Told = list[tuple[Job, Event]]


def hear_all(told: Told) -> None:
    """Let the owners of some rows hear, in turn; one who cannot is as good as gone."""
    for job, event in told:
        try:
            job.hear(event)
        except Exception:
            job.cancelled = True
