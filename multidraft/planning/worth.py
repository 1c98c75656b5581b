"""What nodes are worth where time has a price: how many drafts each should get, and how many levels should follow.

A level of drafts takes time however few nodes are on it, so whether to go on is one decision for all nodes. Once it is
made, each node can be decided on its own: its worth depends on nothing but how likely the walk comes by, and on what
the draft model says there.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float, Int

from multidraft.planning.costs import Costs
from multidraft.planning.predictions import COUNTS, Predictions

SMALLEST, POINTS = 3e-3, 64
REACHES = np.concatenate([[0.0], np.geomspace(SMALLEST, 1.0, POINTS - 1)])  # of the walk, at which worth is tabulated
BETWEEN = (REACHES[1:] + REACHES[:-1]) / 2
ROUNDS, CLOSE = 12, 1e-3


@dataclass(frozen=True)
class Prices:
    """What costs time, in tokens that could be made instead."""

    node: float  # a drafted node
    read: float  # a node at which the draft model reads
    level: float  # a level of drafts, beside the nodes on it

    @classmethod
    def of(cls, costs: Costs, rows: int, speed: float, looks: bool = True) -> "Prices":
        """The prices where so many tokens a second are made over all rows."""
        read = speed * max(costs.level(2) - costs.level(1), 0.0)
        level = speed * (costs.level(1) + costs.draw + costs.look * looks) - read
        return cls(speed * costs.one_more(0) / rows, read / rows, max(level, 0.0))


class Worth:
    """Tables of worth by the number of levels that may still follow.

    With l levels below a node of class c that the walk comes by with probability r,

        values[l, c](r) = max_n  a - n * node + sum_i max(0, average[l](a * share_i) - read)

    where a = r * acceptance[c, n], and `counts[l, c](r)` is the place of the n that reaches it. `average[l + 1]` is the
    average over classes: what a node is worth before the draft model has read there. `average[0]` is zero.
    """

    def __init__(self, predictions: Predictions, prices: Prices, depth: int):
        frequency, average = np.array(predictions.frequency), np.zeros(len(REACHES))
        averages, values, counts = [average], [], []
        for _ in range(depth):
            value, count = best(predictions, prices, average)
            average = frequency @ value
            averages.append(average)
            values.append(value)
            counts.append(count)
        self.average, self.values, self.counts = np.stack(averages), np.stack(values), np.stack(counts)
        self.prices, self.price_of_levels = prices, prices.level * np.arange(depth + 1)

    def ahead(self, reaches: Float[np.ndarray, " nodes"], levels: int) -> Float[np.ndarray, " nodes"]:
        """What each node gains if as many levels follow as pay best, at most so many; nothing where none does."""
        gains = np.maximum(self.average[: levels + 1, BETWEEN.searchsorted(reaches)] - self.prices.read, 0.0)
        return gains[(gains.sum(1) - self.price_of_levels[: levels + 1]).argmax()]

    def drafts(
        self, classes: Int[np.ndarray, " nodes"], reaches: Float[np.ndarray, " nodes"], levels: int
    ) -> Int[np.ndarray, " nodes"]:
        """How many drafts each of the nodes should get, by their place in `COUNTS` after none.

        Fewer than so many levels may follow below.
        """
        places = BETWEEN.searchsorted(reaches)
        totals = self.values[:levels, classes, places].sum(1) - self.price_of_levels[:levels]
        return self.counts[totals.argmax(), classes, places]

    def whole(self, rows: int) -> float:
        """What drafting from the roots of so many rows on is worth, beyond its time."""
        gains = rows * np.maximum(self.average[:, -1] - self.prices.read, 0.0) - self.price_of_levels
        return float(gains.max())


def best(
    predictions: Predictions, prices: Prices, below: Float[np.ndarray, " reaches"]
) -> tuple[Float[np.ndarray, "classes reaches"], Int[np.ndarray, "classes reaches"]]:
    """The most that nodes of every class can be worth whose children are worth `below`, and the drafts it takes."""
    net, values = np.maximum(below - prices.read, 0.0), []
    for drafts, rates, shares in zip((0, *COUNTS), predictions.acceptance.T, ((), *predictions.shares), strict=True):
        passing = rates[:, None] * REACHES
        children = sum(np.interp(passing * share, REACHES, net) for share in shares)
        values.append(passing + children - drafts * prices.node)
    return np.max(values, 0), np.argmax(values, 0)


@cache
def settled(predictions: Predictions, costs: Costs, rows: int, depth: int, looks: bool = True) -> tuple[Worth, float]:
    """The worth of nodes at the speed that it leads to, and that speed, in tokens a second over all rows.

    At a price of time the surplus is what a step is worth beyond its time; it falls as the price rises, and is zero at
    the speed of the best trees (renewal-reward). The root is found by halving.
    """
    low, seconds = rows / (costs.target(1) + costs.plain), costs.target(1) + costs.step
    high = rows * (1 + depth) / seconds
    for _ in range(ROUNDS):
        speed = (low + high) / 2
        worth = Worth(predictions, Prices.of(costs, rows, speed, looks), depth)
        low, high = (speed, high) if rows + worth.whole(rows) > speed * seconds else (low, speed)
        if high - low < CLOSE * high:
            break
    return Worth(predictions, Prices.of(costs, rows, low, looks), depth), low
