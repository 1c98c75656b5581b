"""Fixed trees to choose from, with what is predicted of them, side by side."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from jaxtyping import Float

from multidraft.autotune.costs import CostsByRows
from multidraft.autotune.ease import EASES
from multidraft.autotune.rates import Rates
from multidraft.decoding.shapes import Fixed
from multidraft.decoding.tree import Tree

MARGIN = 0.02  # by which drafts must be faster than none; predictions err by 3 %, and a wider one would forgo more
NEVER = 1e-12  # a smaller chance to come by is none


class Candidates:
    """A tree of d levels is a line of d pairs: which share of the walks finds drafts, and which share of those misses.

    So expected tokens for other acceptances than measured are a product and a sum over all lines at once.
    """

    def __init__(self, trees: Sequence[Tree], rates: Rates, costs: CostsByRows):
        self.shapes, self.costs = [Fixed(tree) for tree in trees], costs
        self.nodes = np.array([len(tree) - 1 for tree in trees])
        self.depths = np.array([max(tree.depths) for tree in trees])
        self.drafting, self.missing = np.zeros((2, len(trees), max(self.depths)))
        for index, tree in enumerate(trees):
            reach, depths, draws = np.array(rates.reaches(tree)), np.array(tree.depths), np.array(tree.drafts) > 0
            for depth in range(self.depths[index]):
                drawing = reach[(depths == depth) & draws].sum()
                self.drafting[index, depth] = drawing / max(reach[depths == depth].sum(), NEVER)
                found = min(reach[depths == depth + 1].sum() / max(drawing, NEVER), 1)  # above it by rounding
                self.missing[index, depth] = 1 - found
        self.times = dict[int, Float[np.ndarray, " trees"]]()

    def tokens(self, exponent: float = 1.0) -> Float[np.ndarray, " trees"]:
        """Expected tokens a row and step, one that comes without drafts included; see `Ease` for the exponent."""
        return 1 + np.cumprod(self.drafting * (1 - self.missing**exponent), axis=1).sum(1)

    @cached_property
    def by_ease(self) -> Float[np.ndarray, "eases trees"]:
        """The same for each of `EASES`."""
        return np.stack([self.tokens(ease) for ease in EASES.tolist()])

    def seconds(self, rows: int) -> Float[np.ndarray, " trees"]:
        """Predicted seconds of a step with so many rows."""
        if rows not in self.times:
            self.times[rows] = np.array([self.costs.at(rows).of_tree(shape.tree) for shape in self.shapes])
        return self.times[rows]
