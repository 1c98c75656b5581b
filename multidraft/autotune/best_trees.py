"""The best fixed trees for some costs: by dynamic programming over how likely a walk is to come by, as in Sequoia."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, combinations_with_replacement
from operator import mul

from multidraft.autotune.costs import Costs
from multidraft.autotune.rates import Rates
from multidraft.decoding.tree import NO_DRAFTS, Tree

FINE = 12.0  # reaches that differ by less than a twelfth count as one
SMALLEST = 0.01  # a node that is passed less often gets no drafts
PRICES = (0.3, 0.6, 1.0, 1.7, 3.0)  # times what a node costs: curves are not straight, nor is the estimate right
ROUNDS = 4
LARGEST = 32  # nodes of a k-config


@dataclass
class Search:
    """The tree with so many levels that is worth most, where nodes have a price in tokens."""

    rates: Rates
    levels: int
    node: float  # price of a drafted node
    read: float  # price of a node at which something is drawn
    known: dict[tuple[int, int, int], tuple[float, int]] = field(default_factory=dict)

    def value(self, depth: int, reach: float, weight: float) -> tuple[float, int]:
        """What drafting at a node is worth that the walk enters with some weight, and how many drafts it should get."""
        if depth == self.levels or reach < SMALLEST:
            return 0.0, 0
        key = depth, round(math.log(reach) * FINE), round(weight * 4)
        if key not in self.known:
            reach, weight = math.exp(key[1] / FINE), key[2] / 4
            self.known[key] = self.best(depth, reach, weight)
        return self.known[key]

    def best(self, depth: int, reach: float, weight: float) -> tuple[float, int]:
        """The same, by trying numbers of drafts until two more have not helped."""
        best = 0.0, 0
        for drafts in range(1, self.rates.most + 1):
            if (worth := self.worth(depth, reach, weight, drafts)) > best[0]:
                best = worth, drafts
            elif drafts > best[1] + 2:
                break
        return best

    def worth(self, depth: int, reach: float, weight: float, drafts: int) -> float:
        """What a number of drafts is worth, with all that hangs below them."""
        passing = reach * self.rates.accepted(drafts, weight, depth)
        children = zip(self.rates.shares[drafts], self.rates.weights[drafts], strict=True)
        below = sum(self.value(depth + 1, passing * share, entered)[0] for share, entered in children)
        return passing + below - drafts * self.node - self.read

    def tree(self) -> Tree:
        """The tree."""
        parents, drafts, places = [-1], list[int](), [(0, 1.0, 1.0)]
        while (slot := len(drafts)) < len(parents):
            depth, reach, weight = places[slot]
            drafts.append(self.value(depth, reach, weight)[1])
            passing = reach * self.rates.accepted(drafts[slot], weight, depth)
            parents += [slot] * drafts[slot]
            children = zip(self.rates.shares[drafts[slot]], self.rates.weights[drafts[slot]], strict=True)
            places += [(depth + 1, passing * share, entered) for share, entered in children]
        return Tree(tuple(parents), tuple(drafts))


def speed(tree: Tree, rates: Rates, costs: Costs, rows: int) -> float:
    """Predicted tokens a second, over all rows."""
    return rows * sum(rates.reaches(tree)) / costs.of_tree(tree)


def best_tree(rates: Rates, costs: Costs, rows: int, levels: int = 8) -> tuple[Tree, float]:
    """The fixed tree that gives most tokens a second, and how many, by Dinkelbach's iteration.

    The trees that are worth most at a price of time have a speed, which is the next price; it rises until it stays.
    """
    best, rho = NO_DRAFTS, speed(NO_DRAFTS, rates, costs, rows)
    for _ in range(ROUNDS):
        speeds = {tree: speed(tree, rates, costs, rows) for tree in trees_at(rates, costs, rows, levels, rho)}
        found = max(speeds, key=speeds.__getitem__, default=best)
        if not speeds or speeds[found] <= rho:
            break
        best, rho = found, speeds[found]
    return best, rho


def menu(rates: Rates, costs: Costs, rows: int, levels: int = 8) -> list[Tree]:
    """Trees to choose from: none, k-configs, and the best of every depth at several prices."""
    _, rho = best_tree(rates, costs, rows, levels)
    return list(dict.fromkeys([NO_DRAFTS, *k_configs(levels), *trees_at(rates, costs, rows, levels, rho)]))


def k_configs(levels: int) -> Iterator[Tree]:
    """Chains, and those with one number of drafts on every level that never grows with depth: one draw a level."""
    for depth in range(1, levels + 1):
        for counts in combinations_with_replacement(range(4, 0, -1), depth):
            if sum(accumulate(counts, mul)) <= LARGEST:
                yield Tree.levels(counts)


def trees_at(rates: Rates, costs: Costs, rows: int, levels: int, rho: float) -> Iterator[Tree]:
    """The trees of every depth that are worth most where a second is worth `rho` tokens."""
    for price in PRICES:
        node = price * rho / rows * costs.one_more(0)
        read = price * rho / rows * (costs.level(2) - costs.level(1))
        for depth in range(1, levels + 1):
            if len(tree := Search(rates, depth, node, read).tree()) > 1:
                yield tree
