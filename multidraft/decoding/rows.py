"""A drafted tree as plain numbers, row by row: what walks and reports look at."""

from collections import defaultdict
from functools import cached_property

from multidraft.decoding.drafted_tree import DraftTree
from multidraft.decoding.tree import Tree


class Row:
    """One row's tree: its nodes, where a drafted token leads, and which slots drew at a node."""

    def __init__(self, tree: Tree, tokens: list[int], alias: list[int], packed: bool = True):
        self.tree, self.token, self.node = tree, tokens, alias  # by slot: the tree above, its token, its node
        self.packed = packed  # whether the target reads nodes alone, and no other slots
        self.slots: list[int] = []  # of the nodes, in the order in which the target reads them
        self.children: dict[int, dict[int, int]] = {}  # by node and token
        self.drew: dict[int, list[int]] = defaultdict(list)
        self.spare: list[int] = []  # slots that are no nodes, which nobody sees
        for slot, (token, node) in enumerate(zip(tokens, alias, strict=True)):
            (self.slots if token >= 0 and node == slot else self.spare).append(slot)
            if token < 0:
                continue
            if slot:
                self.children.setdefault(alias[tree.parents[slot]], {})[token] = node
            if tree.drafts[slot]:
                self.drew[node].append(slot)

    def has_drafts(self, node: int) -> bool:
        """Whether anything was drawn at the node."""
        return node in self.drew

    @cached_property
    def place(self) -> dict[int, int]:
        """Where a node stands among those that the target has read."""
        return {slot: place if self.packed else slot for place, slot in enumerate(self.slots)}

    def widest(self, node: int) -> int:
        """Of the slots that drew at a node, the one that drew most."""
        return max(self.drew[node], key=self.tree.drafts.__getitem__)

    def count(self, node: int) -> int:
        """How many drafts it drew."""
        return self.tree.drafts[self.widest(node)]

    def rank(self, node: int, child: int) -> int:
        """Which of the drafts at a node made a child: 0 for the one drawn first."""
        parent = self.tree.parents[child]
        before = sum(self.tree.drafts[other] for other in self.drew[node] if other < parent)
        return before + child - self.tree.first_child[parent]


def rows_of(drafts: DraftTree) -> list[Row]:
    """The tree of every row."""
    alias = drafts.alias.tolist() if drafts.repeats else None
    return rows_with(drafts, drafts.tokens.tolist(), alias)


def rows_with(drafts: DraftTree, tokens: list[list[int]], alias: list[list[int]] | None = None) -> list[Row]:
    """The same where the tokens are known, and the aliases if there are any."""
    alias = alias or [list(range(len(drafts.trees[0])))] * len(tokens)
    parts = zip(drafts.trees, tokens, alias, strict=True)
    return [Row(*each, packed=not drafts.read_whole) for each in parts]
