"""What the parts of a step cost on one machine, and so what one more draft or one more level does."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from multidraft.decoding.tree import Tree


@dataclass(frozen=True)
class Curve:
    """Seconds by a count: straight lines between measured points, and on beyond the last with the last slope.

    >>> Curve((1, 3), (1.0, 2.0))(2)
    1.5
    """

    counts: tuple[int, ...]
    seconds: tuple[float, ...]

    def __call__(self, count: int) -> float:
        if len(self.counts) == 1:
            return self.seconds[0]
        after = min(max(bisect_right(self.counts, count), 1), len(self.counts) - 1)
        (x, z), (y, w) = self.counts[after - 1 : after + 1], self.seconds[after - 1 : after + 1]
        return max(y + (w - y) * (count - x) / (z - x), 0.0)

    def mixed(self, other: "Curve", share: float) -> "Curve":
        """The curve that lies by `share` of the way towards another one."""
        counts = tuple(sorted({*self.counts, *other.counts}))
        return Curve(counts, tuple((1 - share) * self(count) + share * other(count) for count in counts))


@dataclass(frozen=True)
class Costs:
    """Seconds of a step's parts with a certain number of rows, for all of them together."""

    target: Curve  # a pass of the target, by new tokens a row
    level: Curve  # a level of drafts, by the nodes a row at which the draft model reads
    draw: float  # drawing once on a level, with one number of drafts
    plain: float  # all beside the target's pass where nothing is drafted
    step: float  # rule, walk and cache where something is
    node: float  # the same for every node a row
    fork: float = 0.0  # the same for every level on which several tokens are drawn at a node
    look: float = 0.0  # what a level takes more where a shape looks at draft distributions
    reading: float = 0.0  # the draft model's pass over the prompts, by token of all of them

    def of_tree(self, tree: Tree) -> float:
        """A whole step with a fixed tree in every row."""
        return self.seconds(tree.reads, len(tree) - 1, tree.groups, tree.forks)

    def seconds(self, reads: Sequence[int], nodes: int, draws: int, forks: int, looks: bool = False) -> float:
        """A whole step: the nodes a row that draw on each level, all nodes a row, how often tokens are drawn, forks."""
        if not reads:
            return self.target(1) + self.plain
        drafting = sum(map(self.level, reads)) + self.draw * draws + self.look * looks * len(reads)
        return drafting + self.target(1 + nodes) + self.step + self.node * nodes + self.fork * forks

    def one_more(self, nodes: int, ahead: int = 12) -> float:
        """What a node beyond so many takes in the target's pass and afterwards, on the average of the next few."""
        return (self.target(1 + nodes + ahead) - self.target(1 + nodes)) / ahead + self.node

    def mixed(self, other: "Costs", share: float) -> "Costs":
        """Costs that lie by `share` of the way towards others."""
        numbers = [(1 - share) * getattr(self, name) + share * getattr(other, name) for name in NUMBERS]
        return Costs(self.target.mixed(other.target, share), self.level.mixed(other.level, share), *numbers)


NUMBERS = ("draw", "plain", "step", "node", "fork", "look", "reading")
NOTHING = Costs(Curve((1,), (0.0,)), Curve((1,), (0.0,)), *[0.0] * len(NUMBERS))


@dataclass(frozen=True)
class CostsByRows:
    """Costs as measured with some numbers of rows, the first of which is one."""

    rows: tuple[int, ...]
    costs: tuple[Costs, ...]

    def looking(self, look: float) -> "CostsByRows":
        """The same, with what a level takes more where a shape looks at draft distributions."""
        return replace(self, costs=tuple(replace(own, look=look) for own in self.costs))

    @cache  # noqa: B019  # plans are few, and every step asks
    def at(self, rows: int) -> Costs:
        """With any number of rows: a line between two that were measured; beyond the last, in proportion."""
        if rows >= self.rows[-1]:
            return NOTHING.mixed(self.costs[-1], rows / self.rows[-1])
        after = bisect_right(self.rows, rows)
        first, last = self.rows[after - 1 : after + 1]
        return self.costs[after - 1].mixed(self.costs[after], (rows - first) / (last - first))
