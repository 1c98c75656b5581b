"""What drafts will be accepted: predicted from what is known before the target has spoken."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

MOST = 8  # drafts at a node
EDGES = (0.003, 0.01, 0.03, 0.06, 0.1, 0.15, 0.22, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.93, 0.97, 0.99)
CLASSES = len(EDGES) + 1
PRIOR = 3.0  # positions' worth of the average of all classes in each class

Gains = list[list[float]]
Claims = list[list[list[float]]]


def class_of(probability: float) -> int:
    """The class of a draft probability."""
    return bisect_right(EDGES, probability)


@dataclass(frozen=True)
class Predictions:
    """Acceptance at one temperature, by what the draft model itself says at temperature 1.

    `gains[n][c]` is what the n-th draft at a node adds to the acceptance where the n-th most likely token is of class
    c. `claims[n][i][c]` is what child i of n may claim where it is of class c. `most` is the same without classes:
    `average[n]` the acceptance of n drafts, `shares[n][i]` the claim of child i.
    """

    gains: Gains
    claims: Claims
    average: list[float]
    shares: list[list[float]]

    def acceptance(self, top: Sequence[float], drafts: int) -> float:
        """The predicted acceptance of a number of drafts at a node with these largest draft probabilities."""
        return sum(self.gains[n][class_of(top[n - 1])] for n in range(1, drafts + 1))


def rising(means: Float[np.ndarray, " classes"], weights: Float[np.ndarray, " classes"]) -> list[float]:
    """The nearest numbers that never fall from class to class: neighbours that fall are averaged."""
    blocks: list[list[float]] = []
    for mean, weight in zip(means, weights, strict=True):
        blocks.append([mean, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, weight, size = blocks.pop()
            other = blocks[-1]
            total = other[1] + weight
            blocks[-1] = [(other[0] * other[1] + mean * weight) / total, total, other[2] + size]
    return [float(block[0]) for block in blocks for _ in range(int(block[2]))]


def by_class(values: Float[np.ndarray, " positions"], probabilities: Float[np.ndarray, " positions"]) -> list[float]:
    """The mean of values in every class of probabilities, drawn towards the mean of all, and rising."""
    places = np.searchsorted(EDGES, probabilities, side="right")
    counts = np.bincount(places, minlength=CLASSES)
    sums = np.bincount(places, weights=values, minlength=CLASSES)
    mean = values.mean() if len(values) else 0.0
    return rising((sums + PRIOR * mean) / (counts + PRIOR), counts + 1e-3)
