"""The best fixed trees for given costs and acceptance: by dynamic programming over depth and reach, as in Sequoia."""

import math
from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Float, Int

from multidraft.autotune.acceptance import MOST_DRAFTS, Rates
from multidraft.autotune.costs import Costs
from multidraft.decoding.tree import NO_DRAFTS, Tree

FINE, STEPS = 12, 56  # reaches are told apart by a twelfth of their logarithm, down to one in a hundred
LEVELS = (1, 2, 3, 4, 6, 8)
PRICES = (0.5, 1.0, 2.0)  # times what a node costs: the curve of a pass is not straight
EASES = (0.4, 1.0, 2.5)  # texts for which the menu has trees: from much harder than expected to much easier
CHAINS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
COMMON = ("2x1", "2x1x1", "2x1x1x1", "3x1x1x1", "2x2x1", "4x2x1")
ROUNDS = 6
REACH = np.exp(-np.arange(STEPS) / FINE)


def speed(tree: Tree, rates: Rates, costs: Costs, rows: int) -> float:
    """Predicted tokens a second, over all rows."""
    return rows * rates.tokens(tree) / costs.of_tree(tree)


def best_tree(rates: Rates, costs: Costs, rows: int, nodes: int = 32, depth: int = 8) -> tuple[Tree, float]:
    """The fixed tree with most tokens a second, and how many; it may be the root alone.

    Dinkelbach's iteration: the trees that are worth most at a price of time have a speed, which is the next price; it
    rises until it stays.
    """
    best, rho = NO_DRAFTS, speed(NO_DRAFTS, rates, costs, rows)
    for _ in range(ROUNDS):
        found = fastest(trees_at(rates, costs, rho / rows, nodes, depth), rates, costs, rows)
        if found is None or speed(found, rates, costs, rows) <= rho:
            break
        best, rho = found, speed(found, rates, costs, rows)
    return best, rho


def menu(rates: Rates, costs: Costs, rows: int, nodes: int = 32, depth: int = 8) -> list[Tree]:
    """A few trees to choose from: none, chains, common ones, and the best for harder and easier texts."""
    given = (*(Tree.levels([1] * length) for length in CHAINS), *map(Tree.parse, COMMON))
    small = [tree for tree in given if len(tree) - 1 <= nodes and max(tree.depths) <= depth]
    best = [best_tree(rates.eased(ease), costs, rows, nodes, depth)[0] for ease in EASES]
    return list(dict.fromkeys([NO_DRAFTS, *small, *best]))


def fastest(trees: Iterable[Tree], rates: Rates, costs: Costs, rows: int) -> Tree | None:
    """The one of some trees with most tokens a second."""
    return max(trees, key=lambda tree: speed(tree, rates, costs, rows), default=None)


def trees_at(rates: Rates, costs: Costs, rho: float, nodes: int, depth: int) -> Iterator[Tree]:
    """The trees of every depth that are worth most where a second is worth `rho` tokens of a row."""
    for price in PRICES:
        node, read = price * rho * costs.one_more(0), price * rho * costs.reading()
        for levels in LEVELS:
            if levels <= depth and 1 < len(tree := planned(rates, levels, node, read)) <= nodes + 1:
                yield tree


def planned(rates: Rates, levels: int, node: float, read: float) -> Tree:
    """The tree of at most so many levels that is worth most, where nodes and nodes that are read have prices in tokens.

    The value of drafting n tokens at a node that is reached with probability r is r a_n less the prices, and the values
    of its children, which are reached with the parts of r a_n that they have.
    """
    below, choices = np.zeros(STEPS), list[Int[np.ndarray, " reaches"]]()
    for depth in reversed(range(levels)):
        worth = np.stack([value(rates, drafts, depth, below, node, read) for drafts in range(MOST_DRAFTS + 1)])
        choices.insert(0, worth.argmax(0))
        below = worth.max(0)
    return grown(rates, choices)


def value(
    rates: Rates, drafts: int, depth: int, below: Float[np.ndarray, " reaches"], node: float, read: float
) -> Float[np.ndarray, " reaches"]:
    """What so many drafts at a node are worth, by its reach."""
    if not drafts:
        return np.zeros(STEPS)
    found = REACH * rates.accepted(drafts, depth) - drafts * node - read
    for step in steps_of(rates, drafts, depth):
        if step < STEPS:
            found[: STEPS - step] += below[step:]
    return found


def steps_of(rates: Rates, drafts: int, depth: int) -> list[int]:
    """By how many steps of the reach each child lies below its parent."""
    accepted = rates.accepted(drafts, depth)
    return [round(-FINE * math.log(max(accepted * share, 1e-9))) for share in rates.parts[drafts][:drafts]]


def grown(rates: Rates, choices: list[Int[np.ndarray, " reaches"]]) -> Tree:
    """The tree that the choices by depth and reach make, from the root on."""
    drafts, places = list[int](), [(0, 0)]
    for depth, step in places:  # which grows meanwhile
        count = int(choices[depth][step]) if depth < len(choices) and step < STEPS else 0
        drafts.append(count)
        places += [(depth + 1, step + below) for below in steps_of(rates, count, depth)]
    return Tree.from_drafts(drafts)
