"""A request: a prompt to continue, with its settings, and the tokens that it has got so far."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from transformers import StoppingCriteria

from multidraft.decoding.record import Emitted, Logprob
from multidraft.decoding.state import Randomness
from multidraft.models.corpus import Corpus
from multidraft.sampling.row_faults import RowFault, holds
from multidraft.sampling.settings import Sampling

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Stop:
    """Where a row ends, beside its number of new tokens: at a token, behind a string, or where a criterion holds."""

    tokens: frozenset[int] = frozenset()
    criteria: Sequence[StoppingCriteria] = ()
    device: torch.device = CPU  # where the criteria expect the sequence
    completes_string: Callable[[int], bool] = lambda token: False  # gets every new token, of one request


class Stage(IntEnum):
    """How far a request has come, as its owner knows: it never goes back, though it may be read again."""

    WAITING = 0
    READING = 1  # the target reads its prompt
    CATCHING_UP = 2  # the draft model does, and what the target says of the prompt has been told
    DECODING = 3
    ENDED = 4


@dataclass(frozen=True)
class Step:
    """What one step brought a row: its tokens, its tree (only the root where nothing was drafted), the accepted path.

    The tree is kept as tokens and parents' indices, because updates may wait in a queue and should be small.
    """

    emitted: Emitted
    tokens: list[int]
    parents: list[int]
    path: list[int]
    depth: int


@dataclass(frozen=True)
class Update:
    """What has happened to a request: its prompt is read, then come steps; the last update has `end` or `error`."""

    step: Step | None = None
    end: str | None = None  # "stop" at an end of text, "length" at its limit
    error: BaseException | None = None
    prompt_logprobs: list[Logprob] | None = None  # of all its tokens but the first, if they were asked for
    cached_tokens: int | None = None  # of the prompt, in the update that says that it has been read
    prompt_tokens_read: int | None = None  # so far, in an update that comes before all are read


@dataclass(eq=False)
class Request:
    """A prompt to continue by up to `max_new_tokens`; `on_update` receives what happens."""

    prompt: list[int]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: Stop = field(default_factory=Stop)
    generator: torch.Generator = field(default_factory=torch.Generator)
    on_update: Callable[[Update], object] = lambda update: None
    num_logprobs: int | None = None  # log-probabilities of emitted tokens, and of so many of the most likely ones
    num_prompt_logprobs: int | None = None  # the same of the prompt's tokens
    padded_prompt: list[int] | None = None  # what processors and criteria see in place of the prompt
    owner: str = ""  # the API key that sent it
    corpus: Corpus | None = None  # the owner's earlier texts, which look-ups may copy from
    is_seeded: bool = False  # its tokens must come again: its trees depend on nothing but its own text
    index: int = 0  # among the requests of one call, for messages
    tokens: list[int] = field(default_factory=list)  # the new ones so far
    logprobs: list[Logprob] = field(default_factory=list)  # of `tokens`, if they were asked for
    phase: Stage = Stage.WAITING  # beyond it in the queue: it took part in a step that failed, and has to step alone
    cancelled: bool = False  # by its owner, from any thread
    random: Randomness = field(init=False)

    def __post_init__(self) -> None:
        self.random = Randomness(self.generator, self.is_seeded)

    @property
    def has_ended(self) -> bool:
        """Whether its owner knows the end."""
        return self.phase is Stage.ENDED

    @property
    def longest(self) -> int:
        """The number of tokens that it may come to."""
        return len(self.prompt) + self.max_new_tokens

    @property
    def text(self) -> list[int]:
        """The prompt and the tokens after it."""
        return [*self.prompt, *self.tokens]

    @property
    def padded_text(self) -> list[int]:
        """The same as processors and criteria see it."""
        return [*(self.padded_prompt or self.prompt), *self.tokens]

    def cut(self, emitted: Emitted) -> tuple[Emitted, str | None]:
        """A step's tokens up to the one that ends the row, and why it ends; raises RowFault where a criterion fails."""
        room = self.max_new_tokens - len(self.tokens)
        for count, token in enumerate(emitted.tokens[:room], 1):
            ends = self.stop.completes_string(token) or token in self.stop.tokens
            if ends or (self.stop.criteria and self.meets_criterion(emitted.tokens[:count])):
                return emitted.first(count), "stop"
        return (emitted, None) if len(emitted.tokens) < room else (emitted.first(room), "length")

    def meets_criterion(self, emitted: list[int]) -> bool:
        """Whether a criterion holds after these tokens."""
        sequence = torch.tensor([self.padded_text + emitted], device=self.stop.device)
        try:
            return any(holds(criterion, sequence) for criterion in self.stop.criteria)
        except RowFault as fault:
            raise fault.at(self.index, sequence.shape[1] - 1) from fault

    def take(self, emitted: Emitted, ended: bool) -> None:
        """Add the tokens of a step: from here on a step that fails does not draw them again."""
        self.tokens += emitted.tokens
        self.logprobs += emitted.logprobs
        self.phase = Stage.ENDED if ended else self.phase
        self.random.taken.clear()
