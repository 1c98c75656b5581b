"""What the parts of a step cost on one machine, and so what one more draft or one more level does."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

import numpy as np

from multidraft.decoding.tree import Tree

Parts = tuple[float | int, float | int, float | int]  # seconds of a step: its drafts, the target's pass, all the rest
HINT = 0.05  # how much a guess weighs beside a measurement


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
    plain: float | int  # all beside the target's pass where nothing is drafted
    step: float | int  # what a step with drafts takes beside its passes
    node: float | int  # the same for every drafted node a row

    def of_tree(self, tree: Tree) -> float | int:
        """A whole step with one tree in every row."""
        return self.seconds(reads_of(tree), len(tree) - 1)

    def seconds(self, reads: Sequence[float | int], nodes: float | int) -> float | int:
        """A whole step, by the nodes a row that are read on each level, and all drafted nodes a row."""
        if not reads:
            return self.target(1) + self.plain
        return sum(map(self.level, reads)) + self.target(1 + nodes) + self.step + self.node * nodes

    def one_more(self, nodes: float | int, ahead: int = 8) -> float | int:
        """What a node beyond so many takes, on the average of the next few."""
        return (self.target(1 + nodes + ahead) - self.target(1 + nodes)) / ahead + self.node

    def reading(self) -> float | int:
        """What the draft model takes for one token of a prompt."""
        return self.level(2) - self.level(1)

    def scaled(self, share: float | int) -> "Costs":
        """The costs with so many times the rows: a pass costs what as many tokens in fewer rows do."""
        own = (share * self.plain, share * self.step, share * self.node)
        return Costs(self.target.scaled(share), self.level.scaled(share), *own)


def fitted(samples: Mapping[str, Sequence[Parts]]) -> Costs:
    """The costs that explain the seconds of steps best, by tree; the tree of no drafts must be among them."""
    medians = {tree_named(name): tuple(map(median, zip(*runs, strict=True))) for name, runs in samples.items() if runs}
    plain = next(parts for tree, parts in medians.items() if len(tree) == 1)
    drafted = {tree: parts for tree, parts in medians.items() if len(tree) > 1}
    target = rising({len(tree): parts[1] for tree, parts in medians.items()})
    more = min(target.slope / max(target.seconds[0], 1e-12), 1.0)  # of a pass; a draft model is assumed to be alike
    reads = [([len(reads_of(tree)), sum(reads_of(tree))], parts[0] - plain[0]) for tree, parts in drafted.items()]
    rests = [([1, len(tree) - 1], parts[2]) for tree, parts in drafted.items()]
    base, wider = explained(reads, [more, more - 1.0])
    step, node = explained(rests, [1.0, -8.0])  # eight nodes are assumed to take as long as what is done once
    return Costs(target, Curve((1, 2), (base + wider, base + 2 * wider)), plain[0] + plain[2], step, node)


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


def rising(seconds: Mapping[int, float | int]) -> Curve:
    """A curve that never falls: noise must not make a larger pass cheaper."""
    counts = sorted(seconds)
    return Curve(tuple(counts), tuple(np.maximum.accumulate([seconds[count] for count in counts]).tolist()))


@cache
def reads_of(tree: Tree) -> tuple[int, ...]:
    """At how many nodes the draft model reads on each level."""
    drawing = Counter(depth for depth, drafts in zip(tree.depths, tree.drafts, strict=True) if drafts)
    return tuple(drawing[depth] for depth in range(tree.depth))


def tree_named(name: str) -> Tree:
    """A tree by its name, of which that without drafts has none."""
    return Tree.parse(name) if name else Tree.from_drafts([0])
