"""What drafts will be accepted, predicted from what the draft model says, before the target has spoken."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from jaxtyping import Float

COUNTS = (1, 2, 3, 4, 6, 8)  # drafts at a node; few numbers, because each one on a level is a draw of its own
FIRST = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)  # edges between classes of the largest probability
SECOND = (0.3, 0.6)  # the same of the second one's share of all that the largest leaves
CLASSES = (len(FIRST) + 1) * (len(SECOND) + 1)
UNSURE, SURE = 0.01, 0.995  # probabilities beyond them count as these

Curve = tuple[float, float, float]  # a constant and two slopes, of log odds


@dataclass(frozen=True)
class Predictions:
    """Acceptance at one temperature, by the draft model's probabilities at temperature 1.

    For every number of drafts `COUNTS[k]` two logistic curves: `accepted[k]` is how likely one of them is accepted, by
    the log odds of the most likely token and the second one's share of the rest; `claimed[k]` what a child may claim
    beside its siblings, by the log odds of its own token and the logarithm of its place among the draws. `shares[k]` is
    what each child has of it on the average, and `frequency` how often nodes of each class come.
    """

    accepted: tuple[Curve, ...]
    claimed: tuple[Curve, ...]
    shares: tuple[tuple[float, ...], ...]
    frequency: tuple[float, ...]

    @cached_property
    def acceptance(self) -> Float[np.ndarray, "classes counts"]:
        """How likely a draft is accepted in the middle of every class: with none, and with each of `COUNTS`.

        More drafts never make it less likely.
        """
        middle = [(log_odds(first), second) for first in middles(FIRST) for second in middles(SECOND)]
        rates = [[0.0, *(logistic(curve, *seen) for curve in self.accepted)] for seen in middle]
        return np.maximum.accumulate(rates, 1)

    def flat(self) -> "Predictions":
        """The same without confidence: every node is like the average one, and trees are fixed ones."""
        means = np.array(self.frequency) @ self.acceptance
        return replace(
            self, accepted=tuple((math.log(mean / (1 - mean)), 0.0, 0.0) for mean in means[1:].clip(1e-9, 1 - 1e-9))
        )


def middles(edges: Sequence[float]) -> list[float]:
    """The middle of every class."""
    return [(low + high) / 2 for low, high in pairwise((0.0, *edges, 1.0))]


def class_of(first: float, second: float) -> int:
    """The class of a node, by its two largest draft probabilities."""
    return bisect_right(FIRST, first) * (len(SECOND) + 1) + bisect_right(SECOND, share_of_rest(first, second))


def share_of_rest(first: float, second: float) -> float:
    """What the second largest probability is of all that the largest leaves."""
    return min(second / max(1 - first, 1e-9), 1.0)


def log_odds(probability: float) -> float:
    """The logarithm of the odds, of a probability that is not too near to zero or one."""
    kept = min(max(probability, UNSURE), SURE)
    return math.log(kept / (1 - kept))


def logistic(curve: Curve, first: float, second: float) -> float:
    """The value of a curve."""
    constant, slope, other = curve
    return 1 / (1 + math.exp(-constant - slope * first - other * second))
