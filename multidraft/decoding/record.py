"""What came of a step: everything that metrics, traces, learning and a server's picture want to know of it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from multidraft.decoding.policy import StepForecast
from multidraft.decoding.targets import Targets
from multidraft.decoding.tree import TokenTree
from multidraft.decoding.walks import Verdict, WalkResult
from multidraft.sampling.row_faults import RowFault

STEP_PARTS = ("draft", "target", "rule", "cache", "measure")


class Clock:
    """Seconds by the parts of a step, on top of those that there are."""

    def __init__(self, synchronise: bool, seconds: dict[str, float] | None = None):
        self.seconds, self.synchronise = dict.fromkeys(STEP_PARTS, 0.0) if seconds is None else seconds, synchronise

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
    """One row's new tokens and how each came to be: "accepted", "recovered" or "bonus"."""

    tokens: list[int]
    kinds: list[str]
    logprobs: list[Logprob] = field(default_factory=list)  # if asked for

    def first(self, count: int) -> "Emitted":
        """The first tokens."""
        return Emitted(self.tokens[:count], self.kinds[:count], self.logprobs[:count])


class Measured(NamedTuple):
    """The acceptance rate at a row's root, beside the largest that any rule can reach for its drafting law."""

    expected: float  # over all tuples where `exact`, else of the tuple that was drawn
    optimal: float
    exact: bool


class Visit(NamedTuple):
    """A node that a walk came to: with its target scaled to a weight, the rule said this."""

    node: int
    weight: float
    verdict: Verdict


class CoinFlip(NamedTuple):
    """A coin that a walk threw: it shows yes where the number is below the probability."""

    probability: float
    number: float
    yes: bool


class Decision(NamedTuple):
    """How a step ends, row by row."""

    walk_results: list[WalkResult]
    last: list[int]  # the one more token
    numbers: list[float]  # which it was drawn with
    events: list[list[Visit | CoinFlip]]


@dataclass
class StepRecord:
    """One step, row by row in the order of the state's rows."""

    targets: Targets  # logits and distributions at the nodes of the trees
    events: list[list[Visit | CoinFlip]]  # of the rows' walks, in order
    walk_results: list[WalkResult]  # the accepted nodes below the root, and what the one more token was drawn from
    emitted: list[Emitted]  # the accepted tokens and one more; nothing where there was a fault
    numbers: list[float]  # which the one more token was drawn with
    scored: list[bool]  # whether the target has read the row's tree, or had said all with the row's prompt
    draft_passes: int
    seconds: dict[str, float]  # of every part: draft, target, rule, cache, measure
    measured: dict[int, Measured] = field(default_factory=dict)  # by row, in the steps that measure
    forecast: StepForecast | None = None  # by the policy, if it predicts anything
    is_first_of_size: bool = False  # whether something was made for passes of its size, which took time

    @property
    def trees(self) -> list[TokenTree]:
        """The rows' trees."""
        return self.targets.trees

    @property
    def decoding_seconds(self) -> float:
        """Without what comparing acceptance with the optimum took."""
        return sum(self.seconds.values()) - self.seconds["measure"]

    @property
    def is_catching_up(self) -> bool:
        """Whether the draft model has read, in some row, what it had missed, in place of drafting."""
        return any(tree.backlog > 0 and not tree.read for tree in self.trees)

    @property
    def faults(self) -> dict[int, RowFault]:
        """Rows that cannot go on, for their models or processors have no distribution for them: drop them."""
        return self.targets.faults


def acceptance_of(events: list[Visit | CoinFlip]) -> float:
    """What the rule accepts of the tuple at a walk's root, which it comes to first; 0 where nothing was drawn."""
    return next((event.verdict.acceptance for event in events if isinstance(event, Visit)), 0.0)
