"""Trees that grow with what the draft model says: a node gets drafts while that pays at the going rate.

A draft is worth the tokens that it is expected to add, and costs seconds at the rate of tokens that the best tree makes
(renewal-reward, as in SMART, arXiv 2604.09731). The number of drafts at a node looks at the draft model's
probabilities, at what was drawn elsewhere, and at past steps, never at the tokens drawn at that node: so the output is
exact (docs/theory.md).
"""

from multidraft.autotune.acceptance import DEFAULT, Rates, class_of
from multidraft.autotune.costs import Costs
from multidraft.decoding.policy import DynamicTree
from multidraft.decoding.tree import TokenTree

MOST = 4  # drafts at a node


class Growing(DynamicTree):
    """Drafts as long as their expected gain exceeds their price; say first what the prices are."""

    def __init__(self, nodes: int, depth: int):
        super().__init__(MOST, nodes + 1)
        self.depth, self.rates = depth, DEFAULT
        self.node = self.read = self.level = 0.0  # prices in tokens: of a draft, of a node and of a pass that is read

    def price(self, rates: Rates, costs: Costs, rows: int, rho: float | int) -> None:
        """Go by these from now on; a second is worth `rho` tokens."""
        self.rates, self.node, self.read = rates, rho * costs.one_more(0) / rows, rho * costs.reading() / rows
        self.level = rho * (costs.level(1) - costs.reading())

    def reads(self, trees: list[TokenTree], depth: int) -> list[list[int]]:
        """The nodes of a level at which one draft is expected to pay; none where they do not pay for the pass."""
        gains = [self.gains(tree, depth) if depth < self.depth else {} for tree in trees]
        if sum(sum(own.values()) for own in gains) <= self.level:
            return [[] for _ in trees]
        return [list(own) for own in gains]

    def gains(self, tree: TokenTree, depth: int) -> dict[int, float]:
        """By node of a level, where that is positive, what a draft there is expected to give beyond its price."""
        nodes = tree.level(depth) if len(tree) < self.most_nodes else []
        gains = {node: self.gain(tree, node, 1, self.reach(tree, node)) - self.read for node in nodes}
        return {node: gain for node, gain in gains.items() if gain > 0}

    def gain(self, tree: TokenTree, node: int, drafts: int, reach: float | int) -> float:
        """What the last of so many drafts at a node gives beyond its price."""
        depth, sure = tree.depths[node], sureness(tree, node)
        more = self.rates.accepted(drafts, depth, sure) - self.rates.accepted(drafts - 1, depth, sure)
        return reach * more - self.node

    def reach(self, tree: TokenTree, node: int) -> float:
        """How likely the accepted path comes through a node, as far as the confidence of those above it tells."""
        if node == 0:
            return 1.0
        above = tree.parents[node]
        drafts = tree.counts[above]
        accepted = self.rates.accepted(drafts, tree.depths[above], sureness(tree, above))
        return self.reach(tree, above) * accepted * self.rates.parts[drafts][tree.rank(node)]

    def counts(self, trees: list[TokenTree], depth: int) -> list[dict[int, int]]:
        """The drafts of every node that was read: as many as pay, by the draft model's confidence there."""
        return [self.decided(tree, depth) for tree in trees]

    def decided(self, tree: TokenTree, depth: int) -> dict[int, int]:
        """The drafts of one row's nodes, the likeliest nodes first while there is room."""
        room, found = self.most_nodes - len(tree), dict[int, int]()
        reach = {node: self.reach(tree, node) for node in tree.level(depth) if node in tree.laws}
        for node in sorted(reach, key=lambda one: -reach[one]):
            count = 0
            while count < min(MOST, room) and self.gain(tree, node, count + 1, reach[node]) > 0:
                count += 1
            if count:
                found[node], room = count, room - count
        return found


def sureness(tree: TokenTree, node: int) -> int | None:
    """The confidence class of a node, or of the one above it where the draft model has not read it."""
    if node not in tree.laws and node:
        node = tree.parents[node]
    return class_of(tree.laws[node]) if node in tree.laws else None
