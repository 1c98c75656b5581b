"""What is accepted on the average, by drafts at a node and by the weight with which a walk comes there."""

from collections.abc import Sequence
from dataclasses import dataclass

from multidraft.decoding.tree import Tree

WEIGHTS = (1.0, 0.75, 0.5, 0.25)  # with which targets were scaled


@dataclass(frozen=True)
class Rates:
    """Average acceptance at one temperature.

    `acceptance[n][k]` is that of n drafts at a node that the walk enters with weight `WEIGHTS[k]`, over this weight:
    the smaller it is, the more of it the drafts can cover (on a chain, this is what block verification gains). Child i
    of n has the share `shares[n][i]` of it, and is entered with weight `weights[n][i]`. `factors[d]` is what real steps
    accepted at depth d on top of all that, the last one also below it.
    """

    acceptance: Sequence[Sequence[float]]
    shares: Sequence[Sequence[float]]
    weights: Sequence[Sequence[float]]
    factors: Sequence[float] = (1.0,)

    @property
    def most(self) -> int:
        """The largest number of drafts at a node."""
        return len(self.acceptance) - 1

    def accepted(self, drafts: int, weight: float, depth: int) -> float:
        """The acceptance of a number of drafts at a node."""
        found = between(self.acceptance[drafts], weight) * self.factors[min(depth, len(self.factors) - 1)]
        return min(found, 1.0)

    def reaches(self, tree: Tree) -> list[float]:
        """How likely the walk is to pass each slot."""
        reach, weight = [1.0] * len(tree), [1.0] * len(tree)
        for slot, parent in enumerate(tree.parents[1:], 1):
            drafts, rank = tree.drafts[parent], slot - tree.first_child[parent]
            accepted = self.accepted(drafts, weight[parent], tree.depths[parent])
            reach[slot] = reach[parent] * accepted * self.shares[drafts][rank]
            weight[slot] = self.weights[drafts][rank]
        return reach


def between(values: Sequence[float], weight: float) -> float:
    """The value at a weight, on the lines between those at `WEIGHTS`."""
    place = min(max((1.0 - weight) * 4, 0.0), len(values) - 1.0)
    before = min(int(place), len(values) - 2)
    return values[before] + (values[before + 1] - values[before]) * (place - before)
