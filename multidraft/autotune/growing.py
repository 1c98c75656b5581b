"""Trees that grow with the drafter's confidence: a node gets another draft while its gain exceeds its price.

The gain of a draft is the number of tokens that it is expected to add. Its price is its seconds times the tokens per
second that the policy reaches (renewal-reward, as in SMART, arXiv 2604.09731). The number of drafts at a node depends
on the draft model's probabilities, on what was drawn at other nodes, and on past steps. It never depends on the tokens
drawn at that node, so the output is exact (docs/theory.md).
"""

import math
from collections.abc import Sequence

from multidraft.autotune.estimates import DEFAULT, Costs, Rates, acceptance_of_known
from multidraft.decoding.policy import Plan, TreePolicy
from multidraft.decoding.tree import TokenTree
from multidraft.models.huggingface import Model
from multidraft.models.reader import Cost, Reader

MAX_NODE_DRAFTS = 4  # drafts at a node of a growing tree
MIN_NODE_SHARE = 0.01  # a node costs at least this share of a plain step, even if noise hides it
TREE_SHARE = 0.75  # of the paths that a model tells apart, for trees; the others are rows' own and kept prefixes
COPY_CONTINUES = 0.75  # probability that the next looked-up token is right if this one was


def kind_of(draft: Model) -> Cost:
    """Which of a drafter's answers need a pass of a model."""
    return draft.cost if isinstance(draft, Reader) else "pass"


class Growing(TreePolicy):
    """Adds drafts while their expected gain exceeds their price, both in tokens; `price` has to be called first."""

    def __init__(self, nodes: int, depth: int, kind: Cost = "pass"):
        self.max_drafts, self.max_nodes, self.draft_counts = MAX_NODE_DRAFTS, nodes + 1, range(1, MAX_NODE_DRAFTS + 1)
        self.depth, self.kind, self.rates = depth, kind, DEFAULT
        self.most_paths: float | int = math.inf  # of all rows' trees
        self.row_nodes = self.max_nodes  # of a row's tree now, with its root
        self.node_price = self.first_price = 0.0  # of a drafted node; of the first one, in addition
        self.read_price = self.level_price = 0.0  # of a node that the draft model reads; of its pass over a level
        self.model_pays = True  # whether the draft model's first pass is expected to gain more than it costs
        self.is_probing = False  # the draft model is asked whatever its expected gain
        self.rows_per_drafting_row = 1.0  # rows are padded to the widest; the padding is charged to rows that draft
        self.reach_of = dict[tuple[int, int], float]()

    def price(
        self, rates: Rates, costs: Costs, rate: float | int, prompt_reads: float | int = 0, margin: float = 0
    ) -> None:
        """Set the prices of drafts. A second is worth `rate` tokens of a row.

        Drafts must gain more than they cost by `margin`, a share of a plain step. For every new token the draft model
        reads `prompt_reads` tokens of a prompt.
        """
        self.rates, price_per_second = rates, (1 + margin) * rate
        self.node_price = price_per_second * max(costs.node, MIN_NODE_SHARE * costs.plain)
        self.first_price = price_per_second * (costs.first - costs.plain) + margin * rate * costs.plain
        self.read_price, self.level_price = price_per_second * costs.read, price_per_second * costs.level
        gains = [max(self.best_count(1.0, accepted, False)[1] - self.first_price, 0.0) for accepted in rates.by_class]
        gain = sum(share * gain for share, gain in zip(rates.frequency.tolist(), gains, strict=True))
        self.model_pays = gain > self.level_price + self.read_price * (1 + prompt_reads)

    @property
    def asks_model(self) -> bool:
        """Whether a draft model is asked at present, and not look-ups alone."""
        return self.kind != "lookup" and (self.model_pays or self.is_probing)

    def begin(self, rows: int) -> None:
        """Forget the trees of the step before; trees grow as far as there are paths for so many rows."""
        self.row_nodes = 1 + self.paths_of_row(rows)
        self.reach_of.clear()
        self.rows_per_drafting_row = 1.0

    def paths_of_row(self, rows: int) -> int:
        """The most paths of a tree beside so many rows: one for each drafted node at worst."""
        return int(min(self.max_nodes - 1, max(self.most_paths // rows, 1)))

    def paths(self, rows: int) -> int:
        """The trees of some of the rows may take all, and others one path each."""
        return rows * self.paths_of_row(rows) if self.most_paths == math.inf else int(self.most_paths) + rows

    def limit_paths(self, count: int) -> None:
        self.most_paths = count * TREE_SHARE

    def plan(self, trees: list[TokenTree], depth: int) -> Plan:
        """The nodes of a level whose drafts should gain; the draft model is asked if they also pay for its pass."""
        if depth == 0:
            rows = self.drafting_rows(len(trees))
            nodes = [[0] if row < rows else [] for row in range(len(trees))]
            return Plan(nodes, lookup_only=self.kind != "pass" and not self.asks_model)
        model_nodes, lookup_nodes = zip(*(self.gains(tree, depth) for tree in trees), strict=True)
        level_pays = sum(sum(gains.values()) for gains in model_nodes) > self.level_price * len(trees)
        asked_nodes = model_nodes if level_pays or self.kind == "mixed" else [()] * len(trees)
        pairs = zip(asked_nodes, lookup_nodes, strict=True)
        return Plan([[*by_model, *by_lookup] for by_model, by_lookup in pairs], lookup_only=not level_pays)

    def may_pay(self, certainty: float) -> bool:
        accepted = acceptance_of_known([certainty], self.rates.trust)
        return self.best_count(1.0, accepted, True)[1] > self.first_price

    def drafting_rows(self, rows: int) -> int:
        """How many of the rows draft, the first ones: of a draft model that is only tried, about their square root.

        That is enough to learn acceptance from, and each row first has to read what it missed.
        """
        if self.kind == "pass" and not self.asks_model:
            return 0
        is_trial = self.asks_model and not self.model_pays
        return math.isqrt(rows - 1) + 1 if is_trial else rows

    def gains(self, tree: TokenTree, depth: int) -> tuple[dict[int, float], dict[int, float]]:
        """The expected gain of drafts beyond their price, by node of a level; only nodes where it is positive.

        First for nodes that the draft model has to read, then for nodes whose drafts are looked up for free.
        """
        model_nodes, lookup_nodes = dict[int, float](), dict[int, float]()
        read_price = self.rows_per_drafting_row * self.read_price
        for node in tree.level(depth) if depth < self.depth and len(tree) < self.row_nodes else ():
            parent_law, reach = tree.laws[tree.parents[node]], self.reach(tree, node)
            if parent_law.known is not None or self.kind == "lookup":
                if (gain := self.best_count(reach, self.rates.of(parent_law), True)[1]) > 0:
                    lookup_nodes[node] = gain
            elif (gain := self.best_count(reach, self.rates.average, False)[1] - read_price) > 0:
                model_nodes[node] = gain
        return model_nodes, lookup_nodes

    def best_count(self, reach: float, accepted: Sequence[float], by_lookup: bool) -> tuple[int, float]:
        """How many drafts each gain more than their price at a node with this reach, and their gain in sum."""
        continuation = max(accepted[1], COPY_CONTINUES) if by_lookup else self.rates.average[1]
        padding = self.rows_per_drafting_row
        node_price = padding * self.node_price
        chain_price = node_price if by_lookup else node_price + self.level_price + padding * self.read_price
        total = 0.0
        for drafts in range(MAX_NODE_DRAFTS):
            added = reach * (accepted[drafts + 1] - accepted[drafts])
            gain, chain_tokens = added - node_price, added * continuation
            for _ in range(self.depth):  # tokens of the chain that may follow this draft
                if chain_tokens <= chain_price:
                    break
                gain, chain_tokens = gain + chain_tokens - chain_price, chain_tokens * continuation
            if gain <= 0:
                return drafts, total
            total += gain
        return MAX_NODE_DRAFTS, total

    def reach(self, tree: TokenTree, node: int) -> float:
        """The probability that the accepted path passes a node, estimated from the nodes above it."""
        if node == 0:
            return 1.0
        key = (id(tree), node)
        if key not in self.reach_of:
            parent = tree.parents[node]
            drafts = tree.counts[parent]
            accepted = self.rates.of(tree.laws[parent])[drafts] * self.rates.share_lists[drafts][tree.rank(node)]
            self.reach_of[key] = self.reach(tree, parent) * accepted
        return self.reach_of[key]

    def counts(self, trees: list[TokenTree], depth: int) -> list[dict[int, int]]:
        """The number of drafts of every node that was read; the likeliest nodes come first while there is room."""
        counts = [self.counts_of_row(tree, depth) for tree in trees]
        while (drafting_rows := sum(map(bool, counts))) and len(trees) > self.rows_per_drafting_row * drafting_rows:
            self.rows_per_drafting_row = len(trees) / drafting_rows
            counts = [self.counts_of_row(tree, depth) for tree in trees]
        return counts

    def counts_of_row(self, tree: TokenTree, depth: int) -> dict[int, int]:
        """The number of drafts by node of one row."""
        room, counts = self.row_nodes - len(tree), dict[int, int]()
        reach = {node: self.reach(tree, node) for node in tree.level(depth) if node in tree.laws}
        for node in sorted(reach, key=lambda candidate: -reach[candidate]):
            law = tree.laws[node]
            by_lookup = law.known is not None or self.kind == "lookup"
            count, gain = self.best_count(reach[node], self.rates.of(law), by_lookup)
            if depth == 0 and gain <= self.rows_per_drafting_row * self.first_price:  # the root pays for the tree
                count = int(self.is_probing and not by_lookup)
            if count := min(count, room):
                counts[node], room = count, room - count
        return counts
