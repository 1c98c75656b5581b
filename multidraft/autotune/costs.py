"""What the parts of a step cost on one machine, and so what one more draft or one more level does."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import NamedTuple

import numpy as np

from multidraft.decoding.tree import Tree

HINT = 0.05  # how much a guess weighs beside a measurement
AHEAD = 12  # nodes over which the price of one is averaged


class Timed(NamedTuple):
    """A step that was timed: what it did for each row, and the seconds of its parts for all rows."""

    levels: float | int  # on which a draft model was asked
    reads: float | int  # nodes that it read
    nodes: float | int  # that were drafted
    draft: float | int
    target: float | int
    rest: float | int

    @property
    def own(self) -> float | int:
        """Seconds beside passes of models: drafting counts where no model was asked."""
        return self.rest + (0.0 if self.levels else self.draft)


@dataclass(frozen=True)
class Curve:
    """Seconds by a count: straight lines between measured points, flat before the first, on with the last slope.

    >>> Curve((1, 3), (1.0, 2.0))(2)
    1.5
    """

    counts: tuple[float | int, ...]
    seconds: tuple[float | int, ...]

    def __call__(self, count: float | int) -> float | int:
        if len(self.counts) == 1 or count <= self.counts[0]:
            return self.seconds[0]
        after = min(bisect_right(self.counts, count), len(self.counts) - 1)
        (x, z), (y, w) = self.counts[after - 1 : after + 1], self.seconds[after - 1 : after + 1]
        return y + (w - y) * (count - x) / (z - x)

    @property
    def slope(self) -> float | int:
        """Seconds of one more, over the whole curve."""
        span = self.counts[-1] - self.counts[0]
        return (self.seconds[-1] - self.seconds[0]) / span if span else 0.0

    def scaled(self, share: float | int) -> "Curve":
        """The curve by counts of which each stands for so many."""
        return Curve(tuple(count / share for count in self.counts), self.seconds)


@dataclass(frozen=True)
class Costs:
    """Seconds of a step's parts with a certain number of rows, for all of them together."""

    target: Curve  # a pass of the target, by new tokens a row
    level: Curve  # a level of drafts, by the nodes a row at which the draft model reads
    plain: float | int  # all beside the passes where nothing is drafted
    step: float | int  # what a step with drafts takes beside its passes
    node: float | int  # the same for every drafted node a row

    def of_tree(self, tree: Tree) -> float | int:
        """A whole step with one tree in every row."""
        return self.seconds(reads_of(tree), len(tree) - 1)

    def seconds(self, reads: Sequence[float | int], nodes: float | int) -> float | int:
        """A whole step, by the nodes a row that the draft model reads on each level, and all drafted nodes a row."""
        own = self.step + self.node * nodes if nodes else self.plain
        return sum(map(self.level, reads)) + self.target(1 + nodes) + own

    def one_more(self) -> float | int:
        """What a node beyond the first takes, on the average of the next few."""
        return (self.target(2 + AHEAD) - self.target(2)) / AHEAD + self.node

    def entry(self) -> float | int:
        """What the first node takes beyond that: a pass over two tokens may be much dearer than one over one."""
        return self.seconds([], 1) - self.seconds([], 0) - self.one_more()

    def reading(self) -> float | int:
        """What the draft model takes for one token of a prompt."""
        return self.level(2) - self.level(1)

    def scaled(self, share: float | int) -> "Costs":
        """The costs with so many times the rows: a pass costs what as many tokens in fewer rows do."""
        own = (share * self.plain, share * self.step, share * self.node)
        return Costs(self.target.scaled(share), self.level.scaled(share), *own)


def fitted(samples: Mapping[str, Sequence[Timed]]) -> Costs:
    """The costs that explain the seconds of steps best, of which alike ones stand together; some must have no drafts.

    Of alike steps the lower quartile counts: other work on the machine only adds.
    """
    counts = [*map(len, samples.values())]
    typical = [Timed(*map(quartile, zip(*runs, strict=True))) for runs in samples.values()]
    plain, drafted = [one for one in typical if not one.nodes], [one for one in typical if one.nodes]
    target = rising([(1 + ceil(one.nodes), one.target, count) for one, count in zip(typical, counts, strict=True)])
    more = min(target.slope / max(target.seconds[0], 1e-12), 1.0)  # of a pass; a draft model is assumed to be alike
    base, wider = explained([([one.levels, one.reads], one.draft) for one in typical if one.levels], [more, more - 1.0])
    step, node = explained([([1, one.nodes], one.own) for one in drafted], [1.0, -8.0])  # eight nodes cost as a step
    level = Curve((1, 2), (base + wider, base + 2 * wider))
    return Costs(target, level, min(one.own for one in plain), step, node)


def quartile(values: Sequence[float | int]) -> float | int:
    """The lower one, or the least of few."""
    return sorted(values)[len(values) // 4]


def explained(
    cases: Sequence[tuple[Sequence[float | int], float | int]], hint: Sequence[float | int]
) -> tuple[float, float]:
    """Two numbers, none below zero, whose sums in these shares come nearest to the seconds, in proportion.

    The hint is a combination of the two that is zero if nothing else is known.
    """
    if not cases:
        return 0.0, 0.0
    shares = np.array([[*own] for own, _ in cases], dtype=float)
    seconds = np.maximum([own for _, own in cases], 1e-9)
    guess = HINT * np.array([hint]) * shares.sum(1).mean() / seconds.mean()
    rows, wanted = np.concatenate([shares / seconds[:, None], guess]), np.append(np.ones(len(cases)), 0.0)
    both = np.linalg.lstsq(rows, wanted, rcond=None)[0]
    if both.min() >= 0:
        return float(both[0]), float(both[1])
    found, kept = [0.0, 0.0], int(both.argmax())
    column = rows[:-1, kept]
    found[kept] = float(column.sum() / (column @ column))
    return found[0], found[1]


def rising(points: Sequence[tuple[int, float | int, int]]) -> Curve:
    """The nearest curve that never falls, as more tokens never take less; points are sizes, seconds and weights.

    >>> rising([(1, 3.0, 1), (2, 5.0, 1), (4, 4.0, 3)]).seconds
    (3.0, 4.25, 4.25)
    """
    blocks = list[tuple[float | int, int, list[int]]]()
    for size, seconds, weight in sorted(points):
        block = (seconds, weight, [size])
        while blocks and (blocks[-1][0] >= block[0] or blocks[-1][2][-1] == size):
            before, count, sizes = blocks.pop()
            whole = count + block[1]
            block = ((before * count + block[0] * block[1]) / whole, whole, [*sizes, *block[2]])
        blocks.append(block)
    found = {size: seconds for seconds, _, sizes in blocks for size in sizes}
    return Curve(tuple(found), tuple(found.values()))


@cache
def reads_of(tree: Tree) -> tuple[int, ...]:
    """At how many nodes the draft model reads on each level."""
    drawing = Counter(depth for depth, drafts in zip(tree.depths, tree.drafts, strict=True) if drafts)
    return tuple(drawing[depth] for depth in range(tree.depth))
