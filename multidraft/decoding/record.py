"""What came of a step: everything that metrics, traces, learning and a server's picture want to know of it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from multidraft.decoding.policy import Outlook
from multidraft.decoding.state import Scored
from multidraft.decoding.tree import TokenTree
from multidraft.decoding.walks import Ending, Verdict
from multidraft.sampling.gate import RowFault

PARTS = ("draft", "target", "rule", "cache", "measure")


class Clock:
    """Seconds by the parts of a step."""

    def __init__(self, synchronise: bool):
        self.seconds, self.synchronise = dict.fromkeys(PARTS, 0.0), synchronise

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Book a block's time, after pending work on the GPU where asked."""
        start = time.perf_counter()
        yield
        if self.synchronise:
            torch.cuda.synchronize()
        self.seconds[name] += time.perf_counter() - start


class Logprob(NamedTuple):
    """A token's log-probability under the distribution that it was sampled from, and the most likely tokens there."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Emitted:
    """One row's new tokens and how each came to be: "accepted", "corrected" or "bonus"."""

    tokens: list[int]
    kinds: list[str]
    logprobs: list[Logprob] = field(default_factory=list)  # if asked for

    def first(self, count: int) -> "Emitted":
        """The first tokens."""
        return Emitted(self.tokens[:count], self.kinds[:count], self.logprobs[:count])


class Visit(NamedTuple):
    """A node that a walk came to: with its target scaled to a weight, the rule said this."""

    node: int
    weight: float
    verdict: Verdict


class Coin(NamedTuple):
    """A coin that a walk threw: it shows yes where the number is below the probability."""

    probability: float
    number: float
    yes: bool


class Measured(NamedTuple):
    """The acceptance rate at a row's root, beside the largest that any rule can reach for its drafting law."""

    expected: float  # over all tuples where `exact`, else of the tuple that was drawn
    optimal: float
    exact: bool


@dataclass
class StepRecord:
    """One step, row by row in the order of the state's rows."""

    scores: Scored  # the target's logits and distributions at the nodes of the trees
    names: list[str]  # what the policy calls the trees' shapes
    events: list[list[Visit | Coin]]  # of the rows' walks, in order
    endings: list[Ending]  # the accepted nodes below the root, and what the one more token was drawn from
    emitted: list[Emitted]  # the accepted tokens and one more; nothing where there was a fault
    numbers: list[float]  # which the one more token was drawn with
    scored: list[bool]  # whether the target has read the row's tree; the pass over its prompt said all there is to say
    draft_passes: int
    seconds: dict[str, float]  # of every part: draft, target, rule, cache, measure
    measured: dict[int, Measured] = field(default_factory=dict)  # by row, in the steps that measure
    expected: Outlook | None = None  # by the policy, if it predicts anything

    @property
    def trees(self) -> list[TokenTree]:
        """The rows' trees."""
        return self.scores.trees

    @property
    def faults(self) -> dict[int, RowFault]:
        """Rows that cannot go on, for their models or processors have no distribution for them: drop them."""
        return self.scores.faults

    @property
    def target_pass(self) -> bool:
        """Whether the target took a pass: not where all rows' prompts have just been read."""
        return any(self.scored)

    def acceptance(self, row: int) -> float:
        """What the rule accepts of the tuple that was drawn at a row's root."""
        return acceptance_of(self.events[row])

    @property
    def visits(self) -> list[list[Visit]]:
        """By row the nodes that its walk came to, in order."""
        return [[event for event in events if isinstance(event, Visit)] for events in self.events]


def acceptance_of(events: list[Visit | Coin]) -> float:
    """What the rule accepts of the tuple at a walk's root, which it comes to first; 0 where nothing was drawn."""
    return next((event.verdict.acceptance for event in events if isinstance(event, Visit)), 0.0)
