"""What drafts will be accepted, predicted from what the draft model says, before the target has spoken."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from jaxtyping import Float

from multidraft.autotune.rates import WEIGHTS, Rates

COUNTS = (1, 2, 3, 4, 6)  # drafts at a node
FIRST = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)  # edges between classes of the largest probability
SECOND = (0.3, 0.6)  # the same of the second one's share of all that the largest leaves
CLASSES = (len(FIRST) + 1) * (len(SECOND) + 1)
UNSURE, SURE = 0.01, 0.995  # probabilities beyond them count as these
NEVER = 1e-9

Curve = tuple[float, float, float]  # a constant and two slopes, of log odds


@dataclass(frozen=True)
class Confidence:
    """What the draft model's probabilities at temperature 1 tell.

    For every number of drafts `COUNTS[k]` two logistic curves: `accepted[k]` is how likely one of them is accepted at a
    node with weight one, by the log odds of the most likely token and the second one's share of the rest; `claimed[k]`
    what a child may claim beside its siblings, by the log odds of its own token and the logarithm of its place among
    the draws. `frequency` is how often walks pass nodes of each class.
    """

    accepted: tuple[Curve, ...]
    claimed: tuple[Curve, ...]
    frequency: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Acceptance at one temperature: the average by weight, and how confidence moves it."""

    rates: Rates
    confidence: Confidence

    @cached_property
    def acceptance(self) -> Float[np.ndarray, "weights classes counts"]:
        """How likely a draft is accepted in the middle of every class: with none, and with each of `COUNTS`.

        More drafts never make it less likely.
        """
        middle = [(log_odds(first), second) for first in middles(FIRST) for second in middles(SECOND)]
        rates = [
            [[0.0, *(logistic(curve, *seen) for curve in self.at_weight(place))] for seen in middle]
            for place in range(len(WEIGHTS))
        ]
        return np.maximum.accumulate(rates, 2)

    def at_weight(self, place: int) -> list[Curve]:
        """The curves of acceptance with a target of weight `WEIGHTS[place]`, whose log odds are moved alike."""
        found = []
        for (constant, first, second), drafts in zip(self.confidence.accepted, COUNTS, strict=True):
            rate = self.rates.acceptance[drafts]
            found.append((constant + odds(rate[place]) - odds(rate[0]), first, second))
        return found

    def flat(self) -> "Predictions":
        """The same without confidence: every node is like the average one, and trees are fixed ones."""
        constants = [odds(self.rates.acceptance[drafts][0]) for drafts in COUNTS]
        flat = tuple((constant, 0.0, 0.0) for constant in constants)
        return Predictions(self.rates, replace(self.confidence, accepted=flat))


def middles(edges: Sequence[float]) -> list[float]:
    """The middle of every class."""
    return [(low + high) / 2 for low, high in pairwise((0.0, *edges, 1.0))]


def class_of(first: float, second: float) -> int:
    """The class of a node, by its two largest draft probabilities."""
    return bisect_right(FIRST, first) * (len(SECOND) + 1) + bisect_right(SECOND, share_of_rest(first, second))


def share_of_rest(first: float, second: float) -> float:
    """What the second largest probability is of all that the largest leaves."""
    return min(second / max(1 - first, 1e-9), 1.0)


def nearest(weight: float) -> int:
    """The place in `WEIGHTS` of the weight that is nearest."""
    return min(max(round((1 - weight) * len(WEIGHTS)), 0), len(WEIGHTS) - 1)


def log_odds(probability: float) -> float:
    """The logarithm of the odds, of a probability that is not too near to zero or one."""
    kept = min(max(probability, UNSURE), SURE)
    return math.log(kept / (1 - kept))


def odds(rate: float) -> float:
    """The same of a rate, which may come nearer."""
    kept = min(max(rate, NEVER), 1 - NEVER)
    return math.log(kept / (1 - kept))


def logistic(curve: Curve, first: float, second: float) -> float:
    """The value of a curve."""
    constant, slope, other = curve
    return 1 / (1 + math.exp(-constant - slope * first - other * second))
