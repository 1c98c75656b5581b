"""One row: what its owner asks and hears, and how its prompt is read, piece by piece, beside rows that decode.

The target reads first: what it says of the last token is the first answer, for which nobody waits for the draft model.
What rows that have left have read is kept while there is room: a prompt that begins alike need not read it again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from multidraft.decoding.loop import Stopping
from multidraft.decoding.prefill import at_roots
from multidraft.decoding.record import Emitted, Logprob, listed
from multidraft.decoding.state import DecodeConfig, Randomness, State
from multidraft.models.base import LanguageModel, Scored, heard_by, tell
from multidraft.models.huggingface import Model, answers_prompts, reader
from multidraft.sampling.gate import RowFault, distribution_error, softmax
from multidraft.sampling.settings import Sampling


@dataclass(frozen=True)
class Step:
    """One step's tokens, the tree that was drafted (the root alone where nothing was), the accepted path in it.

    Of the tree there are its tokens and the places of their parents: an event may wait for long, and is small.
    """

    new: Emitted
    tokens: list[int]
    parents: list[int]
    path: list[int]
    depth: int


@dataclass(frozen=True)
class Event:
    """What a row's owner hears: that its prompt has been read, then every step; the last has an end or an error."""

    step: Step | None = None
    end: str | None = None  # "stop" at an end of text, "length" at its limit
    error: BaseException | None = None
    prompt: list[Logprob] | None = None  # log-probabilities of all its tokens but the first, if they were asked for


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
    has_ended: bool = False  # its owner has heard the end
    random: Randomness = field(init=False)

    def __post_init__(self) -> None:
        self.random = Randomness(self.generator)

    @property
    def longest(self) -> int:
        """The number of tokens that it may come to."""
        return len(self.prompt) + self.new_tokens

    @property
    def text(self) -> list[int]:
        """The prompt and what has come after it."""
        return [*self.prompt, *self.tokens]

    def cut(self, new: Emitted) -> tuple[Emitted, str | None]:
        """A step's tokens up to the row's end, and the reason if that is reached."""
        new, goes_on = Stopping([self.new_tokens], self.ends).cut(0, self.tokens, new)
        reason = "stop" if new.tokens and new.tokens[-1] in self.ends else "length"
        return new, None if goes_on else reason


Told = list[tuple[Job, Event]]


def hear_all(told: Told) -> None:
    """Let the owners of some rows hear, in turn; one who cannot is as good as gone."""
    for job, event in told:
        try:
            job.hear(event)
        except Exception:
            job.cancelled = True


@dataclass(frozen=True)
class Kept:
    """Both models with one row: the target has read these tokens, the draft model the first of them, if any."""

    tokens: list[int]
    target: LanguageModel
    draft: LanguageModel | None
    drafted: int  # how many the draft model has read


class PrefixCache:
    """Kept rows, the most recently used last; the least recently used leaves first."""

    def __init__(self) -> None:
        self.rows: list[Kept] = []

    @property
    def tokens(self) -> int:
        """Slots that are taken."""
        return sum(len(row.tokens) for row in self.rows)

    def put(self, new: Kept) -> None:
        """One more; those that it begins with are of no more use."""
        self.rows = [row for row in self.rows if common(row.tokens, new.tokens) < len(row.tokens)] + [new]

    def shrink(self, most: int) -> None:
        """Keep no more than so many tokens."""
        while self.rows and self.tokens > most:
            self.rows.pop(0)

    def find(self, prompt: list[int]) -> tuple[Kept | None, int]:
        """The row that begins with most of what a prompt begins with, and how many tokens that are."""
        lengths = [common(row.tokens, prompt) for row in self.rows]
        if not any(lengths):
            return None, 0
        self.rows.append(row := self.rows.pop(lengths.index(max(lengths))))
        return row, max(lengths)


def common(tokens: list[int], others: list[int]) -> int:
    """The number of tokens that two lists both begin with.

    >>> common([3, 1, 4, 1], [3, 1, 5])
    2
    """
    pairs = enumerate(zip(tokens, others, strict=False))
    return next((place for place, (token, other) in pairs if token != other), min(len(tokens), len(others)))


class Reading:
    """The readers of both models, and how far they have come: what is in the cache need not be read again.

    A row that is read again, after a fault, goes on where it was: with the step whose numbers it has given back.
    """

    def __init__(
        self,
        job: Job,
        target: Model,
        draft: Model | None,
        config: DecodeConfig,
        cache: PrefixCache,
        again: bool = False,
    ):
        self.job, self.models, self.config, self.again = job, (target, draft), config, again
        self.text = job.text
        self.logprobs: list[Logprob] = []
        self.scored = None if again else job.prompt_logprobs
        self.kept, self.reused = cache.find(self.text[:-1] if self.scored is None else [])
        self.tells = heard_by(draft)
        if self.tells and self.kept is not None:  # a draft head hears on from its last token, which is read again
            self.reused = max(min(self.reused, self.kept.drafted) - 1, 0)
            self.kept = self.kept if self.reused else None
        self.drafted = min(self.reused + bool(self.tells), self.kept.drafted) if self.kept else 0  # for the draft model
        whole = answers_prompts(target) and not again
        self.done, self.last = self.reused, len(self.text) - (not whole)  # of the target's tokens
        self.state: State | None = None  # where decoding begins, once the target has read what it is to read

    @cached_property
    def readers(self) -> tuple[LanguageModel, LanguageModel | None]:
        """Target and draft; made when they are first used, where a failure is this row's own."""
        capacity, kept = self.job.longest + 2 * self.config.policy.most_nodes + 2, self.kept
        if kept is None:
            target = reader(self.models[0], capacity, False, self.tells)
        else:
            target = kept.target.part(0, self.reused, capacity)
        if kept and kept.draft is not None and self.drafted:
            return target, kept.draft.part(0, self.drafted, capacity)
        draft = None if self.models[1] is None else reader(self.models[1], capacity)
        if draft is not None:
            draft.forward([[]], [[]], "none")  # which makes it a reader of one row
        return target, draft

    @property
    def is_over(self) -> bool:
        """Whether both have read, or the policy skips the draft model: it catches up later, in steps that draft."""
        if self.state is None:
            return False
        skips_draft_model = getattr(self.config.policy, "skips_draft_model", False)
        return self.state.draft is None or not self.state.rows[0].unread or skips_draft_model

    def advance(self, most: int) -> int:
        """Read on by so many tokens at most, and return their number; the draft model begins after the first answer."""
        if self.state is None:
            return self.advance_target(most)
        assert self.state.draft is not None
        row = self.state.rows[0]
        piece, row.unread = row.unread[:most], row.unread[most:]
        read(self.state.draft, piece)
        return len(piece)

    def advance_target(self, most: int) -> int:
        """Let the target read on, to its end; what it says of the prompt is noted if it was asked for."""
        job, text, wanted = self.job, self.text, self.scored
        piece = text[self.done : min(self.done + most, self.last)]
        self.done += len(piece)
        is_whole = self.done == len(text)
        scores = read(self.readers[0], piece, "all" if wanted is not None else "last" if is_whole else "none")
        tell(*self.readers)
        if wanted is not None and piece:
            self.note(scores[0], text[self.done - len(piece) + 1 :][: len(piece)], wanted)
        if self.done == self.last:
            said, unread = [scores[0, -1]] if is_whole else None, text[self.drafted : -1]
            state = at_roots(*self.readers, [text], [job.sampling], [job.generator], said=said, unread=[unread])
            state.rows[0].random, self.state = job.random, state
        return len(piece)

    def note(self, scores: Tensor, follow: list[int], top: int) -> None:
        """The model's own log-probabilities of the tokens that follow."""
        laws, bad = softmax(scores[: len(follow)])
        if bad:
            raise RowFault("the target model", str(distribution_error(scores[bad[0]])))
        self.logprobs += listed(laws.log(), follow, top)


def read(model: LanguageModel, piece: list[int], scored: Scored = "none") -> Any:
    """Let a model keep a piece of one row's text; the logits that are asked for."""
    scores = model.forward([piece], [list(range(-1, len(piece) - 1))], scored if piece else "none")
    model.keep([list(range(len(piece)))])
    return scores
