"""One row: its request, its events, and how its prompt is read in chunks while other rows decode.

The target reads first: the first token needs only its logits, so no row waits for the draft model. The caches of rows
that have left are kept while there is room, and are reused for prompts with the same prefix.
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
from multidraft.models.base import LanguageModel, hidden_layers_of, pass_hidden_states
from multidraft.models.huggingface import Model, answers_prompts, reader
from multidraft.models.reader import Scored
from multidraft.sampling.gate import RowFault, distribution_error, softmax
from multidraft.sampling.settings import Sampling


@dataclass(frozen=True)
class Step:
    """One step's tokens, its tree (only the root where nothing was drafted), and the accepted path.

    The tree is kept as tokens and parents' indices, because events may wait in a queue and should be small.
    """

    new: Emitted
    tokens: list[int]
    parents: list[int]
    path: list[int]
    depth: int


@dataclass(frozen=True)
class Event:
    """What a row's owner receives: one event when its prompt is read, then one per step; the last has end or error."""

    step: Step | None = None
    end: str | None = None  # "stop" at an end of text, "length" at its limit
    error: BaseException | None = None
    prompt: list[Logprob] | None = None  # log-probabilities of all its tokens but the first, if they were asked for


@dataclass(eq=False)
class Job:
    """A prompt to continue, with its own settings and random numbers; `hear` receives its events."""

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
    """Pass each event to its job; a job whose `hear` raises is cancelled."""
    for job, event in told:
        try:
            job.hear(event)
        except Exception:
            job.cancelled = True


@dataclass(frozen=True)
class Kept:
    """The caches of a row that has left: the target has read `tokens`, the draft model the first `drafted` of them."""

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
        """Add a row, and drop the rows that are prefixes of it."""
        self.rows = [row for row in self.rows if common(row.tokens, new.tokens) < len(row.tokens)] + [new]

    def shrink(self, most: int) -> None:
        """Keep no more than so many tokens."""
        while self.rows and self.tokens > most:
            self.rows.pop(0)

    def find(self, prompt: list[int]) -> tuple[Kept | None, int]:
        """The row that shares the longest prefix with a prompt, and the prefix's number of tokens."""
        lengths = [common(row.tokens, prompt) for row in self.rows]
        if not any(lengths):
            return None, 0
        self.rows.append(row := self.rows.pop(lengths.index(max(lengths))))
        return row, max(lengths)


def common(tokens: list[int], others: list[int]) -> int:
    """The length of the common prefix of two lists of tokens.

    >>> common([3, 1, 4, 1], [3, 1, 5])
    2
    """
    pairs = enumerate(zip(tokens, others, strict=False))
    return next((place for place, (token, other) in pairs if token != other), min(len(tokens), len(others)))


class Reading:
    """The readers of both models, and their progress through the prompt; a prefix in the cache is not read again.

    A row that is read again after a fault repeats its last step, with the random numbers that it has given back.
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
        self.hidden_layers = hidden_layers_of(draft)
        if (
            self.hidden_layers and self.kept is not None
        ):  # a draft head hears on from its last token, which is read again
            self.reused = max(min(self.reused, self.kept.drafted) - 1, 0)
            self.kept = self.kept if self.reused else None
        self.drafted = (
            min(self.reused + bool(self.hidden_layers), self.kept.drafted) if self.kept else 0
        )  # for the draft model
        whole = answers_prompts(target) and not again
        self.done, self.last = self.reused, len(self.text) - (not whole)  # of the target's tokens
        self.state: State | None = None  # where decoding begins, once the target has read what it is to read

    @cached_property
    def readers(self) -> tuple[LanguageModel, LanguageModel | None]:
        """Target and draft; made when they are first used, where a failure is this row's own."""
        capacity, kept = self.job.longest + 2 * self.config.policy.most_nodes + 2, self.kept
        if kept is None:
            target = reader(self.models[0], capacity, False, self.hidden_layers)
        else:
            target = kept.target.fork(0, self.reused, capacity)
        if kept and kept.draft is not None and self.drafted:
            return target, kept.draft.fork(0, self.drafted, capacity)
        draft = None if self.models[1] is None else reader(self.models[1], capacity)
        if draft is not None:
            draft.forward([[]], [[]], "none")  # which makes it a reader of one row
        return target, draft

    @property
    def is_over(self) -> bool:
        """Whether both models have read the prompt; a resting draft model catches up later, in steps that draft."""
        if self.state is None:
            return False
        skips_draft_model = getattr(self.config.policy, "skips_draft_model", False)
        return self.state.draft is None or not self.state.rows[0].unread or skips_draft_model

    def advance(self, most: int) -> int:
        """Read up to `most` more tokens, and return their number; the draft model starts after the first token."""
        if self.state is None:
            return self.advance_target(most)
        assert self.state.draft is not None
        row = self.state.rows[0]
        piece, row.unread = row.unread[:most], row.unread[most:]
        read(self.state.draft, piece)
        return len(piece)

    def advance_target(self, most: int) -> int:
        """Let the target read on; note the prompt's log-probabilities if they were asked for."""
        job, text, wanted = self.job, self.text, self.scored
        piece = text[self.done : min(self.done + most, self.last)]
        self.done += len(piece)
        is_whole = self.done == len(text)
        scores = read(self.readers[0], piece, "all" if wanted is not None else "last" if is_whole else "none")
        pass_hidden_states(*self.readers)
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
    """Append a piece of one row's text to a model's cache, and return the requested logits."""
    scores = model.forward([piece], [list(range(-1, len(piece) - 1))], scored if piece else "none")
    model.commit([list(range(len(piece)))])
    return scores
