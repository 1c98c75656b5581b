"""What the parts of a step cost on one machine, and so what one more draft or one more level does."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Curve:
    """Seconds by a count: straight lines between measured points, and on beyond the last with the last slope."""

    counts: tuple[int, ...]
    seconds: tuple[float, ...]

    def __call__(self, count: float) -> float:
        if len(self.counts) == 1:
            return self.seconds[0]
        after = min(max(bisect_right(self.counts, count), 1), len(self.counts) - 1)
        (x, y), (z, w) = zip(self.counts[after - 1 : after + 1], self.seconds[after - 1 : after + 1], strict=True)
        return max(y + (w - y) * (count - x) / (z - x), 0.0)

    def between(self, other: "Curve", share: float) -> "Curve":
        """A curve that lies by `share` of the way towards another one."""
        counts = tuple(sorted({*self.counts, *other.counts}))
        return Curve(counts, tuple(self(count) + share * (other(count) - self(count)) for count in counts))


@dataclass(frozen=True)
class Costs:
    """Seconds of a step's parts with so many rows, summed over the rows."""

    target: Curve  # a pass of the target, by new tokens a row
    level: Curve  # a level of drafts, by the nodes a row at which the draft model reads: its pass, and the draws
    step: float  # rule, walk and cache, whatever was drafted
    node: float  # the same for every node a row
    look: float = 0.0  # a level more where confidences are looked at, which a fixed tree does not need

    def seconds(self, reads: Sequence[int], nodes: int, looks: bool = False) -> float:
        """A whole step: the nodes that the draft model reads on each level, and the nodes that the target reads."""
        drafting = sum(self.level(width) + self.look * looks for width in reads)
        return drafting + self.target(1 + nodes) + self.step + self.node * nodes

    def one_more(self, nodes: int, ahead: int = 8) -> float:
        """What a node beyond `nodes` takes in the target's pass, the rule and the bookkeeping."""
        return (self.target(1 + nodes + ahead) - self.target(1 + nodes)) / ahead + self.node

    def between(self, other: "Costs", share: float) -> "Costs":
        """Costs that lie by `share` of the way towards others."""
        numbers = {
            name: (1 - share) * getattr(self, name) + share * getattr(other, name) for name in ("step", "node", "look")
        }
        return Costs(self.target.between(other.target, share), self.level.between(other.level, share), **numbers)


@dataclass(frozen=True)
class CostsByRows:
    """Costs as measured with some numbers of rows, and between them."""

    rows: tuple[int, ...]
    costs: tuple[Costs, ...]

    @cache  # noqa: B019  # plans are few, and every step asks
    def at(self, rows: int) -> Costs:
        """With any number of rows: a line between two that were measured; beyond the last, in proportion."""
        if rows >= self.rows[-1]:
            return self.costs[-1] if rows == self.rows[-1] else scaled(self.costs[-1], rows / self.rows[-1])
        after = bisect_right(self.rows, rows)
        first, last = self.rows[after - 1 : after + 1]
        return self.costs[after - 1].between(self.costs[after], (rows - first) / (last - first))


def scaled(costs: Costs, factor: float) -> Costs:
    """All costs times a factor."""
    nothing = Costs(Curve((1,), (0.0,)), Curve((1,), (0.0,)), 0.0, 0.0)
    return nothing.between(costs, factor)
