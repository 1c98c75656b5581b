"""Trees that grow with what drafters say: a node gets drafts while that pays at the going rate.

A draft is worth the tokens that it is expected to add, and costs seconds at the rate of tokens that the policy makes
(renewal-reward, as in SMART, arXiv 2604.09731). The number of drafts at a node looks at the draft model's
probabilities, at what was drawn elsewhere, and at past steps, never at the tokens drawn at that node: so the output is
exact (docs/theory.md).
"""

from collections.abc import Sequence
from typing import Literal

from multidraft.autotune.estimates import DEFAULT, Costs, Rates
from multidraft.decoding.policy import TreePolicy
from multidraft.decoding.tree import TokenTree
from multidraft.models.ensemble import Copying
from multidraft.models.huggingface import Model
from multidraft.models.ngram import Reader

MOST = 4  # drafts at a node
LEAST = 0.01  # of a pass that a node is taken to cost, however flat noise lets a pass appear
GOES_ON = 0.75  # how often the next copied token is right where one was
Kind = Literal["model", "copying", "free"]  # drafters whose every answer costs, or only some, or none


def kind_of(draft: Model) -> Kind:
    """What a drafter's answers cost."""
    return "copying" if isinstance(draft, Copying) else "free" if isinstance(draft, Reader) else "model"


class Growing(TreePolicy):
    """Drafts as long as their expected gain exceeds their price; say first what the prices are, in tokens."""

    def __init__(self, nodes: int, depth: int, kind: Kind = "model"):
        self.most_drafts, self.most_nodes, self.counts_drawn = MOST, nodes + 1, range(1, MOST + 1)
        self.depth, self.kind, self.rates = depth, kind, DEFAULT
        self.node = self.first = self.read = self.level = 0.0  # a node, the first one more; a node that is read; a pass
        self.pays = True  # whether a draft model is expected to pay for its first pass
        self.probes = self.frugal = False  # it is asked whatever is expected; it is left alone on this level
        self.crowd = 1.0  # rows for each one that drafts: all are as wide as the widest, which those that draft pay for
        self.reached = dict[tuple[int, int], float]()

    def price(
        self, rates: Rates, costs: Costs, rate: float | int, prompted: float | int = 0, margin: float = 0
    ) -> None:
        """Go by these from now on; a second is worth so many tokens of a row, and drafts have to win by a margin.

        That is a share of a plain step. For each token that comes, the draft model has to read so many of a prompt.
        """
        self.rates, share = rates, (1 + margin) * rate
        self.node = share * max(costs.node, LEAST * costs.plain)
        self.first = share * (costs.first - costs.plain) + margin * rate * costs.plain
        self.read, self.level = share * costs.read, share * costs.level
        gains = [max(self.best(1.0, own, False)[1] - self.first, 0.0) for own in rates.by_class]
        gain = sum(often * own for often, own in zip(rates.frequency.tolist(), gains, strict=True))
        self.pays = gain > self.level + self.read * (1 + prompted)

    def begin(self, rows: int) -> None:
        """Nothing is known of any tree."""
        self.reached.clear()
        self.crowd = 1.0

    def reads(self, trees: list[TokenTree], depth: int) -> list[list[int]]:
        """The nodes of a level at which drafts are expected to pay; a draft model is asked where they pay for that."""
        self.frugal = self.kind == "copying" and not (self.pays or self.probes)
        if depth == 0:
            return [[0] if self.pays or self.probes or self.kind != "model" else [] for _ in trees]
        dear, free = zip(*(self.worth(tree, depth) for tree in trees), strict=True)
        asks = sum(sum(own.values()) for own in dear) > self.level * len(trees)
        self.frugal = not asks
        asked = dear if asks or self.kind == "copying" else [()] * len(trees)
        return [[*one, *other] for one, other in zip(asked, free, strict=True)]

    def worth(self, tree: TokenTree, depth: int) -> tuple[dict[int, float], dict[int, float]]:
        """By node of a level, where that is positive, what drafts there are expected to give beyond their price.

        First of nodes for which a draft model is asked, then of those whose drafts will be copied, which is free.
        """
        dear, free = dict[int, float](), dict[int, float]()
        for node in tree.level(depth) if depth < self.depth and len(tree) < self.most_nodes else ():
            above, reach = tree.laws[tree.parents[node]], self.reach(tree, node)
            if above.known is not None or self.kind == "free":
                if (gain := self.best(reach, self.rates.of(above), True)[1]) > 0:
                    free[node] = gain
            elif (gain := self.best(reach, self.rates.average, False)[1] - self.crowd * self.read) > 0:
                dear[node] = gain
        return dear, free

    def best(self, reach: float, accepted: Sequence[float], free: bool) -> tuple[int, float]:
        """How many drafts pay, each for itself, at a node that is reached so often, and what they give beyond it."""
        goes_on = max(accepted[1], GOES_ON) if free else self.rates.average[1]
        node = self.crowd * self.node
        price = node if free else node + self.level + self.crowd * self.read
        total = 0.0
        for drafts in range(MOST):
            more = reach * (accepted[drafts + 1] - accepted[drafts])
            gain, further = more - node, more * goes_on
            for _ in range(self.depth):  # of the chain that may follow it
                if further <= price:
                    break
                gain, further = gain + further - price, further * goes_on
            if gain <= 0:
                return drafts, total
            total += gain
        return MOST, total

    def reach(self, tree: TokenTree, node: int) -> float:
        """How likely the accepted path comes through a node, as far as the confidence of those above it tells."""
        if node == 0:
            return 1.0
        place = (id(tree), node)
        if place not in self.reached:
            above = tree.parents[node]
            drafts = tree.counts[above]
            own = self.rates.of(tree.laws[above])[drafts] * self.rates.parts[drafts][tree.rank(node)]
            self.reached[place] = self.reach(tree, above) * own
        return self.reached[place]

    def counts(self, trees: list[TokenTree], depth: int) -> list[dict[int, int]]:
        """The drafts of every node that was read: as many as pay, the likeliest nodes first while there is room."""
        found = [self.decided(tree, depth) for tree in trees]
        while (drafting := sum(map(bool, found))) and len(trees) > self.crowd * drafting:
            self.crowd = len(trees) / drafting
            found = [self.decided(tree, depth) for tree in trees]
        return found

    def decided(self, tree: TokenTree, depth: int) -> dict[int, int]:
        """Those of one row's nodes."""
        room, found = self.most_nodes - len(tree), dict[int, int]()
        reach = {node: self.reach(tree, node) for node in tree.level(depth) if node in tree.laws}
        for node in sorted(reach, key=lambda one: -reach[one]):
            law = tree.laws[node]
            free = law.known is not None or self.kind == "free"
            count, total = self.best(reach[node], self.rates.of(law), free)
            if depth == 0 and total <= self.crowd * self.first:  # those at the root have to pay for the tree
                count = int(self.probes and not free)
            if count := min(count, room):
                found[node], room = count, room - count
        return found
