"""How a step's tree takes shape: level by level, every node's number of drafts before anything is drawn there.

A shape may look at nearly everything: draft distributions, tokens drawn so far anywhere in the tree, past steps, random
numbers of its own. It must fix a node's number of drafts before it has seen a token that is drawn at that very node;
then the output is exact with both walks (docs/theory.md).
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from multidraft.decoding.drafted_tree import DraftTree, widened
from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.tree import NO_DRAFTS, Tree
from multidraft.decoding.walks import Verdict


class Outlook(NamedTuple):
    """What a shape expects of a step."""

    tokens: float  # over all rows
    seconds: float


@runtime_checkable
class Shape(Protocol):
    """What growing a tree asks for."""

    @property
    def most_drafts(self) -> int:
        """The largest number of drafts at a node."""
        ...

    @property
    def counts_drawn(self) -> list[int]:
        """The numbers of drafts that a node may have, beside none."""
        ...

    @property
    def most_slots(self) -> int:
        """The largest number of slots in a tree, the root included: what the caches must have room for."""
        ...

    @property
    def is_known(self) -> bool:
        """Whether a step's trees are one tree that `seed` gives whole."""
        ...

    def seed(self, rows: int) -> Tree:
        """What is known of the trees of so many rows before anything is drawn."""
        ...

    def reads(self, drafts: DraftTree, depth: int) -> list[list[int]]:
        """For every row the slots at a depth that the draft model is to read, so that something may be drawn there."""
        ...

    def extended(self, drafts: DraftTree, depth: int) -> list[Tree]:
        """For every row its tree with the drafts at a depth decided; all have the same number of slots."""
        ...

    def temper(self, drafts: int) -> float:
        """What the draft temperature is multiplied by at nodes with so many drafts; not one only where no two slots of
        a level are the same node.
        """
        ...

    def hear(self, tree: ScoredTree, row: int, node: int, weight: float, verdict: Verdict) -> None:
        """What the rule said at a node that the walk has come to, with its target scaled to a weight."""
        ...

    def outlook(self) -> Outlook | None:
        """What it expects of the step that is under way, if it predicts anything."""
        ...


class Fixed:
    """A tree that is known beforehand, the same for every row."""

    is_known = True

    def __init__(self, tree: Tree):
        self.tree, self.most_drafts, self.most_slots = tree, max(tree.drafts), len(tree)
        self.counts_drawn = sorted(set(tree.drafts) - {0})

    def seed(self, rows: int) -> Tree:
        """All of it."""
        return self.tree

    def reads(self, drafts: DraftTree, depth: int) -> list[list[int]]:
        """The drawing slots, which are the same in every row."""
        slots = self.tree.draws[depth].slots if depth < len(self.tree.draws) else []
        return [slots] * len(drafts.trees)

    def extended(self, drafts: DraftTree, depth: int) -> list[Tree]:
        """Nothing is new."""
        return drafts.trees

    def temper(self, drafts: int) -> float:
        """Drafts are drawn from what the draft model says."""
        return 1.0

    def hear(self, tree: ScoredTree, row: int, node: int, weight: float, verdict: Verdict) -> None:
        """It makes no difference."""

    def outlook(self) -> None:
        """Nothing is predicted."""


class Growing:
    """A shape whose trees grow with what is drawn: give it `counts`, and say how large a tree may become."""

    is_known = False

    def __init__(self, most_drafts: int, most_slots: int):
        self.most_drafts, self.most_slots = most_drafts, most_slots
        self.counts_drawn = list(range(1, most_drafts + 1))
        root = torch.zeros(1, 1, dtype=torch.int64)
        widened(root, root, root[None] == 0, root[None], [[0]])  # compiled before any clock runs

    def counts(self, drafts: DraftTree, depth: int, row: int, nodes: Sequence[int]) -> list[int]:
        """How many drafts each of a row's nodes at a depth gets; it may look at all but the tokens drawn there."""
        raise NotImplementedError

    def seed(self, rows: int) -> Tree:
        """The root alone."""
        return NO_DRAFTS

    def reads(self, drafts: DraftTree, depth: int) -> list[list[int]]:
        """All nodes of the level, while there is room for more."""
        room = len(drafts.trees[0]) < self.most_slots
        return [list(nodes) if room else [] for nodes in drafts.level(depth)]

    def extended(self, drafts: DraftTree, depth: int) -> list[Tree]:
        """Every row's tree with the drafts that `counts` gives to its nodes, as far as there is room."""
        decided = [self.decide(drafts, depth, row) for row in range(len(drafts.trees))]
        width = max(sum(counts.values()) for counts in decided)
        return [tree.with_level(counts, width) for tree, counts in zip(drafts.trees, decided, strict=True)]

    def temper(self, drafts: int) -> float:
        """Drafts are drawn from what the draft model says, unless you say so."""
        return 1.0

    def hear(self, tree: ScoredTree, row: int, node: int, weight: float, verdict: Verdict) -> None:
        """It makes no difference, unless you say so."""

    def outlook(self) -> Outlook | None:
        """Nothing is predicted, unless you say so."""
        return None

    def decide(self, drafts: DraftTree, depth: int, row: int) -> dict[int, int]:
        """One row's counts by node."""
        nodes, room, counts = drafts.nodes_at(row, depth), self.most_slots - len(drafts.trees[row]), {}
        for node, count in zip(nodes, self.counts(drafts, depth, row, nodes), strict=True):
            counts[node] = max(min(count, self.most_drafts, room), 0)
            room -= counts[node]
        return counts


def shape_of(tree: Tree | Shape) -> Shape:
    """A tree as the shape that it always takes."""
    return Fixed(tree) if isinstance(tree, Tree) else tree
