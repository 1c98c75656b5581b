"""The best fixed trees for given costs and acceptance: by dynamic programming over depth and reach, as in Sequoia."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
from jaxtyping import Int

from multidraft.autotune.estimates import MAX_DRAFTS, Costs, TreeRates, Work
from multidraft.decoding.tree import NO_DRAFTS, Tree

FINE, STEPS = 12, 56  # reaches are told apart by a twelfth of their logarithm, down to one in a hundred
LEVELS = (1, 2, 3, 4, 6, 8)
PRICES = (0.7, 1.5)  # times what nodes cost, for reaches are rounded
EASES = (0.4, 1.0, 2.5)  # texts for which the menu has trees: from much harder than expected to much easier
CHAINS = (1, 2, 3, 4, 6, 8, 11, 16)
COMMON = ("2x1", "2x1x1", "2x1x1x1", "3x1x1x1", "2x2x1", "4x2x1")
ROUNDS = 4
REACH = np.exp(-np.arange(STEPS) / FINE)


def speed(tree: Tree, rates: TreeRates, costs: Costs, rows: int) -> float | int:
    """Predicted tokens a second, over all rows."""
    return rows * rates.tokens(tree) / costs.seconds(Work.of_tree(tree))


def best_tree(rates: TreeRates, costs: Costs, rows: int, nodes: int = 32, depth: int = 8) -> tuple[Tree, float | int]:
    """The fixed tree with most tokens a second, and how many; it may be the root alone.

    Dinkelbach's iteration: the trees that are worth most at a price of time have a speed, which is the next price; it
    rises until it stays.
    """
    best = max(common(nodes, depth), key=lambda tree: speed(tree, rates, costs, rows))
    rho = speed(best, rates, costs, rows)
    for _ in range(ROUNDS):
        speeds = {tree: speed(tree, rates, costs, rows) for tree in trees_at(rates, costs, rho / rows, nodes, depth)}
        fastest = max(speeds, key=speeds.__getitem__, default=best)
        if speeds.get(fastest, 0.0) <= rho:
            break
        best, rho = fastest, speeds[fastest]
    return best, rho


def menu(rates: TreeRates, costs: Costs, rows: int, nodes: int = 32, depth: int = 8) -> list[Tree]:
    """A few trees to choose from: none, chains, common ones, and the best for harder and easier texts."""
    best = [best_tree(ease_rates(rates, ease), costs, rows, nodes, depth)[0] for ease in EASES]
    return list(dict.fromkeys([*common(nodes, depth), *best]))


@cache
def common(nodes: int, depth: int) -> list[Tree]:
    """No drafts, chains, and trees that are often good, within limits."""
    shapes = (*(Tree.levels([1] * length) for length in CHAINS), *map(Tree.parse, COMMON))
    return [NO_DRAFTS, *(tree for tree in shapes if len(tree) - 1 <= nodes and tree.depth <= depth)]


def trees_at(rates: TreeRates, costs: Costs, rho: float | int, nodes: int, depth: int) -> Iterator[Tree]:
    """The trees of every depth that are worth most where a second is worth `rho` tokens of a row."""
    below = steps_below(rates)
    for price in PRICES:
        node, read = price * rho * costs.node, price * rho * costs.read
        for levels in LEVELS:
            if levels <= depth and 1 < len(tree := plan_tree(rates, below, levels, node, read)) <= nodes + 1:
                yield tree


def ease_rates(rates: TreeRates, exponent: float | int) -> TreeRates:
    """The rates of a text in which drafts are found more easily, by an exponent above one."""
    return replace(rates, missing=rates.missing**exponent)


def steps_below(rates: TreeRates) -> Int[np.ndarray, "drafts ranks"]:
    """By how many steps of the reach each child of a node lies below it, at most to where all is lost."""
    reach = np.array(rates.average)[:, None] * rates.shares
    return np.minimum(np.rint(-FINE * np.log(np.maximum(reach, 1e-9))), STEPS).astype(int)


def plan_tree(
    rates: TreeRates, below: Int[np.ndarray, "drafts ranks"], levels: int, node: float | int, read: float | int
) -> Tree:
    """The tree of at most so many levels that is worth most, where nodes and nodes that are read have prices in tokens.

    The value of drafting n tokens at a node that is reached with probability r is r a_n less the prices, and the values
    of its children, which are reached with the parts of r a_n that they have.
    """
    value, choices = np.zeros(2 * STEPS + 1), list[Int[np.ndarray, " reaches"]]()
    prices = node * np.arange(MAX_DRAFTS + 1) + read * (np.arange(MAX_DRAFTS + 1) > 0)
    for _ in range(levels):
        children = value[np.arange(STEPS) + below[:, :, None]].sum(1)
        worth = REACH * np.array(rates.average)[:, None] - prices[:, None] + children
        choices.insert(0, worth.argmax(0))
        value[:STEPS] = worth.max(0)
    return grow_tree(below, choices)


def grow_tree(below: Int[np.ndarray, "drafts ranks"], choices: list[Int[np.ndarray, " reaches"]]) -> Tree:
    """The tree that the choices by depth and reach make, from the root on."""
    drafts, places = list[int](), [(0, 0)]
    for depth, step in places:  # which grows meanwhile
        count = int(choices[depth][step]) if depth < len(choices) and step < STEPS else 0
        drafts.append(count)
        places += [(depth + 1, step + int(down)) for down in below[count, :count]]
    return Tree.from_drafts(drafts)
