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
        self.below = [0.0] * (depth + 1)  # by depth, what is expected below an accepted node
        self.reach: list[dict[int, float]] = []  # by row and node, how likely the accepted path comes through it
        self.sure: list[dict[int, int | None]] = []  # by row and node, its confidence class, or that of the node above
        self.passes: list[float] = []  # of the step under way: by level, the nodes a row that are read

    def price(self, rates: Rates, costs: Costs, rows: int, rho: float) -> None:
        """Go by these from now on; a second is worth `rho` tokens."""
        self.rates, self.node, self.read = rates, rho * costs.one_more(0) / rows, rho * costs.reading() / rows
        self.level = rho * (costs.level(1) - costs.reading())
        for depth in reversed(range(self.depth)):
            gain = rates.accepted(1, depth) * (1 + self.below[depth + 1]) - self.node - self.read - self.level / rows
            self.below[depth] = max(gain, 0.0)

    def begin(self, rows: int) -> None:
        """Nothing is drawn yet."""
        self.reach, self.sure, self.passes = [{0: 1.0} for _ in range(rows)], [{0: None} for _ in range(rows)], []

    def reads(self, trees: list[TokenTree], depth: int) -> list[list[int]]:
        """The nodes of a level at which one draft is expected to pay; none where they do not pay for the pass."""
        if depth >= self.depth:
            return [[] for _ in trees]
        gains = [self.gains(tree, row, depth) for row, tree in enumerate(trees)]
        if sum(sum(own.values()) for own in gains) <= self.level:
            return [[] for _ in trees]
        self.passes.append(sum(map(len, gains)) / len(trees))
        return [list(own) for own in gains]

    def gains(self, tree: TokenTree, row: int, depth: int) -> dict[int, float]:
        """By node of a row's level, where that is positive, what a draft there is expected to give beyond its price."""
        if len(tree) >= self.most_nodes:
            return {}
        for node in tree.level(depth):
            self.enter(tree, row, node, depth)
        gains = {node: self.gain(row, node, depth, 1) - self.read for node in tree.level(depth)}
        return {node: gain for node, gain in gains.items() if gain > 0}

    def enter(self, tree: TokenTree, row: int, node: int, depth: int) -> None:
        """Expect of a new node what its parent's drafts promise, and to be about as sure as there."""
        if node:
            above = tree.parents[node]
            drafts, sure = tree.counts[above], self.sure[row][above]
            share = self.rates.parts[drafts][tree.rank(node)]
            self.reach[row][node] = self.reach[row][above] * self.rates.accepted(drafts, depth - 1, sure) * share
            self.sure[row][node] = sure

    def gain(self, row: int, node: int, depth: int, drafts: int) -> float:
        """What the last of so many drafts at a node gives beyond its price."""
        sure = self.sure[row][node]
        more = self.rates.accepted(drafts, depth, sure) - self.rates.accepted(drafts - 1, depth, sure)
        return self.reach[row][node] * more * (1 + self.below[depth + 1]) - self.node

    def counts(self, trees: list[TokenTree], depth: int) -> list[dict[int, int]]:
        """The drafts of every node that was read: as many as pay, by the draft model's confidence there."""
        return [self.decided(tree, row, depth) for row, tree in enumerate(trees)]

    def decided(self, tree: TokenTree, row: int, depth: int) -> dict[int, int]:
        """The drafts of one row's nodes, the likeliest nodes first while there is room."""
        room, found, reach = self.most_nodes - len(tree), dict[int, int](), self.reach[row]
        for node in sorted((node for node in tree.level(depth) if node in tree.laws), key=lambda one: -reach[one]):
            self.sure[row][node] = class_of(tree.laws[node])
            count = 0
            while count < min(MOST, room) and self.gain(row, node, depth, count + 1) > 0:
                count += 1
            found[node], room = count, room - count
        return {node: count for node, count in found.items() if count}
