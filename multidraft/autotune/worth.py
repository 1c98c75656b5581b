"""What nodes are worth where time has a price: how many drafts each should get, and how many levels should follow.

A level of drafts takes time however few nodes are on it, so whether to go on is one decision for all nodes. Once it is
made, each node can be decided on its own: its worth depends on nothing but how likely the walk comes by, and on what
the draft model says there.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from jaxtyping import Float, Int

from multidraft.autotune.costs import Costs
from multidraft.autotune.predictions import COUNTS, Predictions
from multidraft.autotune.rates import WEIGHTS

SMALLEST, POINTS = 3e-3, 48
REACHES = np.concatenate([[0.0], np.geomspace(SMALLEST, 1.0, POINTS - 1)])  # of the walk, at which worth is tabulated
BETWEEN = ((REACHES[1:] + REACHES[:-1]) / 2).tolist()
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
        level = speed * (costs.level(1) + costs.draw + costs.fork + costs.look * looks) - read
        return cls(speed * costs.one_more(0) / rows, read / rows, max(level, 0.0))


class Worth:
    """Tables of worth by the number of levels that may still follow.

    With l levels below a node of class c that the walk comes by with probability r and enters with weight w,

        values[l, w, c](r) = max_n  a - n * node + sum_i max(0, average[l](w_i, a * share_i) - read)

    where a = r * acceptance[w, c, n], and `counts[l, w, c](r)` is the place of the n that reaches it; w_i is the weight
    of child i. `average[l + 1]` is the average over classes: what a node is worth before the draft model has read
    there. `average[0]` is zero.
    """

    def __init__(self, predictions: Predictions, prices: Prices, depth: int):
        frequency, average = np.array(predictions.confidence.frequency), np.zeros((len(WEIGHTS), len(REACHES)))
        averages, values, counts = [average], [], []
        for _ in range(depth):
            value, count = best(predictions, prices, average)
            average = np.einsum("c,wcr->wr", frequency, value)
            averages.append(average)
            values.append(value)
            counts.append(count)
        self.average, self.values, self.counts = np.stack(averages), np.stack(values), np.stack(counts)
        self.prices, self.price_of_levels = prices, (prices.level * np.arange(depth + 1)).tolist()

    @cached_property
    def below(self) -> list[list[list[float]]]:
        """By weight and reach what reading a node gains, for every number of levels; as lists, which are quicker."""
        return np.maximum(self.average - self.prices.read, 0.0).transpose(1, 2, 0).tolist()

    @cached_property
    def gains(self) -> list[list[list[list[float]]]]:
        """The values by weight, class and reach, for every number of levels."""
        return self.values.transpose(1, 2, 3, 0).tolist()

    @cached_property
    def places(self) -> list[list[list[list[int]]]]:
        """The counts in the same order."""
        return self.counts.transpose(1, 2, 3, 0).tolist()

    def ahead(self, nodes: Sequence[tuple[int, float]], levels: int) -> list[float]:
        """What each node gains, by weight and reach, if as many levels follow as pay best, at most so many."""
        gains = [self.below[weight][bisect_left(BETWEEN, reach)] for weight, reach in nodes]
        best = self.most(gains, levels + 1)
        return [own[best] for own in gains]

    def drafts(self, nodes: Sequence[tuple[int, int, float]], levels: int) -> list[int]:
        """How many drafts nodes of some weight, class and reach should get, by their place in `COUNTS` after none.

        Fewer than so many levels may follow below.
        """
        gains, counts = [], []
        for weight, kind, reach in nodes:
            place = bisect_left(BETWEEN, reach)
            gains.append(self.gains[weight][kind][place])
            counts.append(self.places[weight][kind][place])
        best = self.most(gains, levels)
        return [own[best] for own in counts]

    def most(self, gains: list[list[float]], numbers: int) -> int:
        """The number of levels that pays best, of the first so many."""
        totals = [sum(own) - price for own, price in zip(zip(*gains, strict=True), self.price_of_levels, strict=False)]
        return totals.index(max(totals[:numbers]))

    def whole(self, rows: int) -> float:
        """What drafting from the roots of so many rows on is worth, beyond its time."""
        return max(rows * gain - price for gain, price in zip(self.below[0][-1], self.price_of_levels, strict=True))


def best(
    predictions: Predictions, prices: Prices, below: Float[np.ndarray, "weights reaches"]
) -> tuple[Float[np.ndarray, "weights classes reaches"], Int[np.ndarray, "weights classes reaches"]]:
    """The most that nodes of every class can be worth whose children are worth `below`, and the drafts it takes."""
    net, values, rates = np.maximum(below - prices.read, 0.0), [], predictions.rates
    for place, drafts in enumerate((0, *COUNTS)):
        passing = predictions.acceptance[:, :, place, None] * REACHES
        children = zip(rates.shares[drafts], rates.weights[drafts], strict=True)
        worth = sum(np.interp(passing * share, REACHES, at_weight(net, weight)) for share, weight in children if share)
        values.append(passing + worth - drafts * prices.node)
    return np.max(values, 0), np.argmax(values, 0)


def at_weight(values: Float[np.ndarray, "weights reaches"], weight: float) -> Float[np.ndarray, " reaches"]:
    """The values at a weight, between those at `WEIGHTS`."""
    place = min(max((1 - weight) * len(WEIGHTS), 0.0), len(WEIGHTS) - 1.0)
    before = min(int(place), len(WEIGHTS) - 2)
    return values[before] + (values[before + 1] - values[before]) * (place - before)


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
