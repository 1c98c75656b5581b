"""`tree="auto"`: at every step the tree that pays best by what was measured and by what has been accepted since."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from multidraft.decoding.drafted_tree import DraftTree
from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.shapes import Fixed, Outlook
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import Verdict
from multidraft.errors import AdviceError
from multidraft.planning.averages import Average
from multidraft.planning.costs import Costs
from multidraft.planning.pair_plan import PairPlan
from multidraft.planning.rates import Rates

AGAIN = 8  # steps after which the choice is made anew
PAUSE, LONGEST = 16, 256  # steps without drafts before a probe: the first pause, and the longest
PRIOR = 12.0  # nodes' worth of the plan's word against what a call sees


@dataclass(frozen=True)
class Limits:
    """How large trees may become, so that their memory is known."""

    nodes: int = 32
    depth: int = 8

    @classmethod
    def parse(cls, text: str) -> "Limits":
        """What follows `auto`, such as `auto,nodes=24,depth=6`.

        >>> Limits.parse("auto,nodes=24")
        Limits(nodes=24, depth=8)
        """
        found = re.fullmatch(r"auto((?:,(?:nodes|depth)=[1-9]\d{0,3})*)", text.replace(" ", "").lower())
        if not found:
            raise AdviceError(f"tree {text!r} does not parse; write auto, or auto,nodes=24,depth=6")
        given = dict(part.split("=") for part in found[1].split(",")[1:])
        return cls(**{name: int(value) for name, value in given.items()})

    def allow(self, tree: Tree) -> bool:
        """Whether a tree keeps to them."""
        return len(tree) - 1 <= self.nodes and max(tree.depths) <= self.depth


class Candidate:
    """A fixed tree with what is predicted of it."""

    def __init__(self, tree: Tree, rates: Rates):
        self.tree, self.shape = tree, Fixed(tree)
        reaches = rates.reaches(tree)
        self.levels = [0.0] * max(tree.depths)  # expected tokens by depth
        for depth, reach in zip(tree.depths[1:], reaches[1:], strict=True):
            self.levels[depth - 1] += reach

    def tokens(self, factors: Sequence[float]) -> float:
        """Expected tokens a row and step, one that comes without drafts included."""
        total, share = 1.0, 1.0
        for level, factor in zip(self.levels, factors, strict=False):
            share *= factor
            total += level * share
        return total

    def seconds(self, costs: Costs) -> float:
        """Predicted seconds of a step."""
        return costs.of_tree(self.tree)


class Auto:
    """A shape that decides anew every few steps; it learns from this call alone, so that a run repeats itself.

    All candidates are compared by predicted tokens a second. What real steps accept beyond the prediction, or below it,
    is one factor for each depth, which fades; it starts at one.
    """

    def __init__(self, plan: PairPlan, temperature: float | int, limits: Limits, tempers: bool = True):
        measured = plan.at(temperature)
        trees = [tree for tree in measured.trees if limits.allow(tree)]
        self.costs, self.rates = plan.costs, measured.rates
        self.candidates = [Candidate(tree, self.rates) for tree in trees]
        self.factors = [Average(1.0, PRIOR) for _ in range(max(len(tree.reads) for tree in trees) + 1)]
        self.most_drafts = max(max(tree.drafts) for tree in trees)
        self.most_slots = max(map(len, trees))
        self.counts_drawn = sorted({count for tree in trees for count in tree.drafts} - {0})
        self.tempers = measured.tempers if tempers else [1.0]
        self.choice, self.rows, self.age = self.candidates[0], 0, 0
        self.pause, self.probing = PAUSE, False

    def seed(self, rows: int) -> Tree:
        """The tree of this step, chosen anew every few steps and whenever rows have come or gone."""
        self.age += 1
        if rows != self.rows or self.age >= (AGAIN if self.choice.levels else self.pause) or self.probing:
            self.choose(rows)
        return self.choice.shape.seed(rows)

    def choose(self, rows: int) -> None:
        """The candidate with most tokens a second; where that is no drafts, a probe before it is believed again."""
        costs, factors = self.costs.at(rows), [factor.value for factor in self.factors]
        best = max(self.candidates, key=lambda one: one.tokens(factors) / one.seconds(costs))
        resting = not self.choice.levels and rows == self.rows and not self.probing
        self.probing = resting and not best.levels and len(self.candidates) > 1
        if self.probing:
            best = max(self.candidates[1:], key=lambda one: one.tokens(factors) / one.seconds(costs))
            self.pause = min(2 * self.pause, LONGEST)
        elif best.levels:
            self.pause = PAUSE
        self.choice, self.rows, self.age = best, rows, 0

    def reads(self, drafts: DraftTree, depth: int) -> list[list[int]]:
        """The drawing slots of the tree that was chosen."""
        return self.choice.shape.reads(drafts, depth)

    def extended(self, drafts: DraftTree, depth: int) -> list[Tree]:
        """Nothing is new."""
        return drafts.trees

    def temper(self, drafts: int) -> float:
        """As it was best when the plan was made."""
        return self.tempers[drafts] if drafts < len(self.tempers) else 1.0

    def hear(self, tree: ScoredTree, row: int, node: int, weight: float, verdict: Verdict) -> None:
        """Learn from what the rule accepts, which is exact: no coin is in it."""
        here = tree.rows[row]
        depth = here.tree.depths[node]
        predicted = self.rates.accepted(min(here.count(node), self.rates.most), weight, depth)
        self.factors[depth].add(verdict.acceptance, weight * predicted)

    def outlook(self) -> Outlook:
        """What is expected of this step."""
        factors = [factor.value for factor in self.factors]
        seconds = self.choice.seconds(self.costs.at(self.rows))
        return Outlook(self.rows * self.choice.tokens(factors), seconds)
