"""Trees that grow where it pays: node by node, by what the draft model says there and by what was measured."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import torch

from multidraft.autotune.costs import CostsByRows
from multidraft.autotune.ease import Ease
from multidraft.autotune.predictions import COUNTS, Predictions, nearest
from multidraft.autotune.sight import Node, Sight, looked_at
from multidraft.autotune.worth import settled
from multidraft.decoding.drafted_tree import DraftTree
from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.shapes import Growing, Outlook
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import Verdict


class Coming(NamedTuple):
    """How a walk comes to a node."""

    reach: float  # how likely it is to come by
    weight: int  # with which it enters there, by its place in `WEIGHTS`


class Pilot(Growing):
    """A shape that drafts where a draft is worth its time; whatever it predicts, the output is exact.

    Level by level it knows how likely the walk is to come by each node, and asks the tables of worth how many levels
    should follow, which nodes the draft model is to read, and how many drafts each of them gets. The root always gets
    one: from it the shape learns how much easier than predicted drafts are found.
    """

    def __init__(
        self,
        costs: CostsByRows,
        predictions: Predictions,
        nodes: int = 32,
        depth: int = 8,
        tempers: Sequence[float] = (),
    ):
        super().__init__(max(COUNTS), nodes + 1)
        self.counts_drawn = list(COUNTS)
        self.costs, self.predictions, self.depth, self.tempers = costs, predictions, depth, tempers
        self.rates: list[list[list[float]]] = predictions.acceptance.tolist()
        self.entered = [[nearest(weight) for weight in own] for own in predictions.rates.weights]
        self.ease = Ease()
        looked_at(torch.zeros(1, 2))  # compiled before any clock runs

    def temper(self, drafts: int) -> float:
        """As it was best when the plan was made."""
        return self.tempers[drafts] if drafts < len(self.tempers) else 1.0

    def seed(self, rows: int) -> Tree:
        """The root alone."""
        self.rows, self.worth = rows, settled(self.predictions, self.costs.at(rows), rows, self.depth)[0]
        self.exponent = self.ease.exponent
        self.coming: dict[Node, Coming] = {(row, 0): Coming(1.0, 0) for row in range(rows)}
        self.kinds: dict[Node, tuple[int, int]] = {}  # the class of a node, and its place in `COUNTS` after none
        self.passing: dict[Node, float] = {}  # how likely the walk goes on to one of its drafts
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
        nodes = {(row, slot): token for row, own in enumerate(drafts.level(depth)) for slot, token in own.items()}
        if not depth or not nodes:
            return list(nodes)
        for node, share in zip(nodes, self.sight.shares(self.predictions, drafts.trees, nodes), strict=True):
            self.come(drafts.trees[node[0]], node, share)
        coming = [(self.coming[node].weight, self.coming[node].reach) for node in nodes]
        gains = self.worth.ahead(coming, self.depth - depth)
        return [node for node, gain in zip(nodes, gains, strict=True) if gain > 0]

    def come(self, tree: Tree, node: Node, share: float) -> None:
        """Note how a walk comes to a child that has a share of what its parent's drafts claim."""
        row, slot = node
        parent = tree.parents[slot]
        entered = self.entered[tree.drafts[parent]][slot - tree.first_child[parent]]
        self.coming[node] = Coming(self.passing[row, parent] * share, entered)

    def extended(self, drafts: DraftTree, depth: int) -> list[Tree]:
        """Every row's tree with the drafts that pay, as far as there is room."""
        counts = self.decided(drafts, depth)
        width = max(sum(row.values()) for row in counts)
        self.nodes += width
        self.draws += len({count for row in counts for count in row.values()} - {0})
        return [tree.with_level(row, width) for tree, row in zip(drafts.trees, counts, strict=True)]

    def decided(self, drafts: DraftTree, depth: int) -> list[dict[int, int]]:
        """By row and slot how many drafts there should be, and what is expected of them."""
        self.sight = Sight(drafts, depth)
        coming = [self.coming[node] for node in self.sight.place]
        seen = [(own.weight, kind, own.reach) for own, kind in zip(coming, self.sight.classes, strict=True)]
        wanted = self.worth.drafts(seen, self.depth - depth)
        counts: list[dict[int, int]] = [{} for _ in range(self.rows)]
        room = [self.most_slots - len(drafts.trees[0])] * self.rows
        for node, (weight, kind, reach), place in zip(self.sight.place, seen, wanted, strict=True):
            row, slot = node
            place = min(max(place, int(depth == 0)), bisect_right(COUNTS, room[row]))
            counts[row][slot] = COUNTS[place - 1] if place else 0
            room[row] -= counts[row][slot]
            self.kinds[node] = kind, place
            self.passing[node] = reach * (1 - (1 - self.rates[weight][kind][place]) ** self.exponent)
        return counts

    def hear(self, tree: ScoredTree, row: int, node: int, weight: float, verdict: Verdict) -> None:
        """Learn from what the rule accepts, which is exact: no coin is in it."""
        kind, place = self.kinds[row, node]
        self.ease.add(verdict.acceptance, weight * self.rates[nearest(weight)][kind][place], weight, len(tree.rows))

    def outlook(self) -> Outlook:
        """What is expected of this step."""
        forks = any(place > 1 for _, place in self.kinds.values())
        costs = self.costs.at(self.rows)
        seconds = costs.seconds(self.widths, self.nodes, self.draws, forks * len(self.widths), looks=True)
        return Outlook(self.rows + sum(self.passing.values()), seconds)
