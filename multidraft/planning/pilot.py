"""Trees that grow where it pays: node by node, by what the draft model says there and by what was measured."""

from bisect import bisect_right

import numpy as np
from jaxtyping import Float

from multidraft.decoding.drafted_tree import DraftTree
from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.shapes import Growing, Outlook
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import Verdict
from multidraft.planning.averages import Average
from multidraft.planning.costs import CostsByRows
from multidraft.planning.predictions import COUNTS, Predictions
from multidraft.planning.sight import Node, Sight
from multidraft.planning.worth import settled

PRIOR = 12.0  # nodes' worth of the plan's word against what a call sees


class Pilot(Growing):
    """A shape that drafts where a draft is worth its time; whatever it predicts, the output is exact.

    Level by level it knows how likely the walk is to come by each node, and asks the tables of worth how many levels
    should follow, which nodes the draft model is to read, and how many drafts each of them gets. The root always gets
    one: from it the shape learns how its predictions do, as one factor for each depth, which fades.
    """

    def __init__(self, costs: CostsByRows, predictions: Predictions, nodes: int = 32, depth: int = 8):
        super().__init__(max(COUNTS), nodes + 1)
        self.counts_drawn = list(COUNTS)
        self.costs, self.predictions, self.depth = costs, predictions, depth
        self.factors = [Average(1.0, PRIOR) for _ in range(depth)]

    def speed(self, rows: int) -> float:
        """The tokens a second that the plan predicts, over all rows."""
        return settled(self.predictions, self.costs.at(rows), rows, self.depth)[1]

    def seed(self, rows: int) -> Tree:
        """The root alone."""
        self.rows, self.worth = rows, settled(self.predictions, self.costs.at(rows), rows, self.depth)[0]
        self.reach: dict[Node, float] = {(row, 0): 1.0 for row in range(rows)}
        self.rates: dict[Node, float] = {}  # how likely a draft of a node is accepted, as the plan has it
        self.passing: dict[Node, float] = {}  # how likely the walk goes on to one of them, with what a call has learnt
        self.widths: list[int] = []
        self.nodes = self.draws = 0
        return super().seed(rows)

    def reads(self, drafts: DraftTree, depth: int) -> list[list[int]]:
        """The nodes of a level that are worth reading, if another level is worth its time."""
        slots: list[list[int]] = [[] for _ in range(self.rows)]
        for row, slot in self.worth_reading(drafts, depth):
            slots[row].append(slot)
        if any(slots):
            self.widths.append(max(map(len, slots)))
        return slots

    def worth_reading(self, drafts: DraftTree, depth: int) -> list[Node]:
        """The same, row after row."""
        if depth == self.depth or len(drafts.trees[0]) >= self.most_slots:
            return []
        nodes = [(row, slot) for row in range(self.rows) for slot in drafts.nodes_at(row, depth)]
        if not depth or not nodes:
            return nodes
        self.reach |= self.sight.shared_out(drafts, nodes, self.passing)
        gains = self.worth.ahead(self.reaches(nodes, depth), self.depth - depth).tolist()
        return [node for node, gain in zip(nodes, gains, strict=True) if gain > 0]

    def reaches(self, nodes: list[Node], depth: int) -> Float[np.ndarray, " nodes"]:
        """How likely the walk is to come by nodes, times the factor of what it finds there."""
        return np.array([self.reach[node] for node in nodes]) * self.factors[depth].value

    def extended(self, drafts: DraftTree, depth: int) -> list[Tree]:
        """Every row's tree with the drafts that pay, as far as there is room."""
        counts = self.decided(drafts, depth)
        width = max(sum(row.values()) for row in counts)
        self.nodes += width
        self.draws += len({count for row in counts for count in row.values()} - {0})
        return [tree.with_level(row, width) for tree, row in zip(drafts.trees, counts, strict=True)]

    def decided(self, drafts: DraftTree, depth: int) -> list[dict[int, int]]:
        """By row and slot how many drafts there should be, and what is expected of them."""
        self.sight = Sight(self.predictions, drafts, depth)
        nodes, classes = self.sight.nodes, self.sight.classes
        wanted = self.worth.drafts(classes, self.reaches(nodes, depth), self.depth - depth).tolist()
        counts: list[dict[int, int]] = [{} for _ in range(self.rows)]
        room = [self.most_slots - len(drafts.trees[0])] * self.rows
        for node, kind, place in zip(nodes, classes.tolist(), wanted, strict=True):
            row, slot = node
            place = min(max(place, depth == 0), bisect_right(COUNTS, room[row]))
            counts[row][slot] = place and COUNTS[place - 1]
            room[row] -= counts[row][slot]
            self.expect(node, float(self.predictions.acceptance[kind, place]), depth)
        return counts

    def expect(self, node: Node, rate: float, depth: int) -> None:
        """Note how likely one of a node's drafts is accepted, and so how likely the walk is to go on below it."""
        self.rates[node] = rate
        self.passing[node] = self.reach[node] * min(rate * self.factors[depth].value, 1.0)

    def hear(self, tree: ScoredTree, row: int, node: int, weight: float, verdict: Verdict) -> None:
        """Learn from what the rule accepts, which is exact: no coin is in it."""
        self.factors[tree.rows[row].tree.depths[node]].add(verdict.acceptance, weight * self.rates[row, node])

    def outlook(self) -> Outlook:
        """What is expected of this step."""
        seconds = self.costs.at(self.rows).seconds(self.widths, self.nodes, self.draws, 0, looks=True)
        return Outlook(self.rows + sum(self.passing.values()), seconds)
