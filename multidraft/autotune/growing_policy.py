"""Trees that grow with the drafter's confidence: a node gets another draft while its gain exceeds its price.

The gain of a draft is the number of tokens that it is expected to add. Its price is its seconds times the tokens per
second that the policy reaches (renewal-reward, as in SMART, arXiv 2604.09731). The number of drafts at a node depends
on the draft model's probabilities, on what was drawn at other nodes, and on past steps. It never depends on the tokens
drawn at that node, so the output is exact (docs/theory.md).
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from multidraft.autotune.estimates import DEFAULT, Costs, TreeRates, acceptance_of_known
from multidraft.decoding.policy import NO_PROMPTS, Plan, PolicyLimits, PromptReads, TreePolicy
from multidraft.decoding.tree import NodeLaw, TokenTree
from multidraft.models.reader import Cost

MAX_NODE_DRAFTS = 4  # drafts at a node of a growing tree
MIN_NODE_SHARE = 0.01  # a node costs at least this share of a plain step, even if noise hides it
TREE_SHARE = 0.75  # of the paths that a model tells apart, for trees; the others are rows' own and kept prefixes
BISECTIONS = 12  # of a certainty
CERTAIN = acceptance_of_known([1.0], 1.0)  # of a look-up that is right
COPY_CONTINUES = 0.75  # probability that the next looked-up token is right if this one was


class Growing(TreePolicy):
    """Adds drafts while their expected gain exceeds their price, both in tokens; `price` has to be called first."""

    def __init__(self, nodes: int, depth: int, kind: Cost = "pass", paths: int | None = None):
        shared_paths = 0 if paths is None else int(paths * TREE_SHARE)
        counts = range(1, MAX_NODE_DRAFTS + 1)
        self.limits = PolicyLimits(nodes + 1, counts, nodes if paths is None else 1, shared_paths)
        self.depth, self.kind, self.rates = depth, kind, DEFAULT
        self.row_nodes = nodes + 1  # of a row's tree now, with its root
        self.first_price = 0.0  # of the first drafted node, beside those that are there
        self.tree_prices = [0.0] * (nodes + MAX_NODE_DRAFTS + depth + 2)  # of so many nodes without that
        self.least_price = 0.0  # that a node adds
        self.read_price = self.level_price = 0.0  # of a node that the draft model reads; of its pass over a level
        self.certainties = dict[float, float]()  # that pay, of a root's first look-up, by rows for each that drafts
        self.can_look_up = kind != "pass"  # whether certain look-ups would pay
        self.rests = False  # nobody is asked, neither a model nor for look-ups
        self.model_pays = True  # whether the draft model's first pass is expected to gain more than it costs
        self.model_can_pay = True  # whether it would if all of its drafts were right
        self.is_probing = False  # the draft model is asked whatever its expected gain
        self.ends_with_rows = True  # trees are cut where their row ends
        self.rows_per_drafting_row = 1.0  # rows are padded to the widest; the padding is charged to rows that draft

    def price(
        self,
        rates: TreeRates,
        costs: Costs,
        rate: float | int,
        reads: PromptReads = NO_PROMPTS,
        margin: float = 0,
        model_margin: float = 0,
    ) -> None:
        """Set the prices of drafts. A second is worth `rate` tokens of a row.

        Drafts must gain more than they cost by `margin`, a share of a plain step, and those of the draft model by
        `model_margin` more. In a step it also `reads` of prompts: tokens of each row, and passes over those of rows
        that join.
        """
        self.rates, price_per_second, self.rows_per_drafting_row = rates, (1 + margin) * rate, 1.0
        first_seconds = max(costs.drafted_seconds(1) - costs.node, 0.0)
        self.first_price = price_per_second * first_seconds + margin * rate * costs.plain
        lowest_price, prices = price_per_second * MIN_NODE_SHARE * costs.plain, self.tree_prices
        for nodes, seconds in enumerate(costs.drafted_seconds_of(range(1, len(prices))), 1):
            prices[nodes] = max(price_per_second * (seconds - first_seconds), prices[nodes - 1] + lowest_price)
        self.least_price = min(after - before for before, after in pairwise(prices))
        self.read_price, self.level_price = price_per_second * costs.read, price_per_second * costs.level
        gains = [
            max(self.best_count(0, 1.0, accepted, False)[1] - self.first_price, 0.0) for accepted in rates.by_class
        ]
        gain = sum(share * gain for share, gain in zip(rates.frequency.tolist(), gains, strict=True))
        if self.kind != "pass":
            self.can_look_up = self.best_count(0, 1.0, CERTAIN, True)[1] > self.first_price
            self.certainties.clear()
        model_price = self.level_price * (1 + reads.passes) + self.read_price * (1 + reads.tokens)
        self.model_pays = gain > model_price + model_margin * rate * costs.plain
        first_read_price = self.first_price + self.level_price + self.read_price
        self.model_can_pay = self.path_gain(0, CERTAIN[1], CERTAIN[1], False) > first_read_price

    @property
    def asks_model(self) -> bool:
        """Whether a draft model is asked at present, and not look-ups alone."""
        return self.kind != "lookup" and (self.model_pays or self.is_probing) and not self.rests

    @property
    def asks_nobody(self) -> bool:
        """Whether nothing is drafted at present, not even by look-ups."""
        return self.rests or not (self.asks_model or self.can_look_up)

    @property
    def can_pay(self) -> bool:
        """Whether drafts would gain more than they cost if all of them were right."""
        return (self.kind != "lookup" and self.model_can_pay) or (self.kind != "pass" and self.can_look_up)

    def plan(self, trees: list[TokenTree], depth: int) -> Plan:
        """The nodes of a level whose drafts should gain; the draft model is asked if they also pay for its pass."""
        if depth == 0:
            self.share_paths(len(trees))
            return self.plan_roots(trees)
        model_nodes, lookup_nodes = zip(*(self.gains(tree, depth) for tree in trees), strict=True)
        level_pays = sum(sum(gains.values()) for gains in model_nodes) > self.level_price * len(trees)
        asked_nodes = model_nodes if level_pays or self.kind == "mixed" else [()] * len(trees)
        pairs = zip(asked_nodes, lookup_nodes, strict=True)
        return Plan([[*by_model, *by_lookup] for by_model, by_lookup in pairs], lookup_only=not level_pays)

    def plan_roots(self, trees: list[TokenTree]) -> Plan:
        """The roots to read."""
        rows, self.rows_per_drafting_row = len(trees), 1.0
        if self.asks_nobody:
            return Plan([[]] * rows)
        rows_with_room = [row for row, tree in enumerate(trees) if self.levels_below(tree, 0) >= 0]
        drafting_rows = {*rows_with_room[: self.drafting_rows(rows)]}
        roots = [[0] if row in drafting_rows else [] for row in range(rows)]
        return Plan(roots, self.kind != "pass" and not self.asks_model, partial(self.min_certainty, rows))

    def min_certainty(self, rows: int, drafting_rows: int) -> float:
        """The least certainty of a root's first look-up with which a tree pays, where so many of the rows draft."""
        padding = rows / drafting_rows
        if padding not in self.certainties:
            self.certainties[padding] = self.certainty_that_pays(padding)
        return self.certainties[padding]

    def share_paths(self, rows: int) -> None:
        """Limit trees by the paths that there are for so many rows: each drafted node takes one at worst."""
        nodes, shared_paths = self.limits.max_nodes, self.limits.shared_paths
        self.row_nodes = min(nodes, 1 + max(shared_paths // rows, 1)) if shared_paths else nodes

    def certainty_that_pays(self, padding: float) -> float:
        """The least certainty of a look-up with which a tree is worth its price; infinite if there is none.

        For each row that drafts, so many are padded to its tree.
        """
        low, high = 0.0, 2.0  # which nothing reaches
        before, self.rows_per_drafting_row = self.rows_per_drafting_row, padding
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            gain = self.best_count(0, 1.0, acceptance_of_known([min(middle, 1.0)], self.rates.trust), True)[1]
            low, high = (low, middle) if gain > padding * self.first_price else (middle, high)
        self.rows_per_drafting_row = before
        return high if high < 2.0 else math.inf

    def drafting_rows(self, rows: int) -> int:
        """How many of the rows draft, the first ones: of a draft model that is only tried, about their square root.

        That is enough to learn acceptance from, and each row first has to read what it missed.
        """
        is_trial = self.asks_model and not self.model_pays
        return math.isqrt(rows - 1) + 1 if is_trial else rows

    def gains(self, tree: TokenTree, depth: int) -> tuple[dict[int, float], dict[int, float]]:
        """The expected gain of drafts beyond their price, by node of a level; only nodes where it is positive.

        First for nodes that the draft model has to read, then for nodes whose drafts are looked up for free.
        """
        model_nodes, lookup_nodes = dict[int, float](), dict[int, float]()
        read_price = self.rows_per_drafting_row * self.read_price
        below = self.levels_below(tree, depth)
        for node in tree.level(depth) if below >= 0 and len(tree) < self.row_nodes else ():
            parent_law, reach = tree.laws[tree.parents[node]], self.reach(tree, node)
            if parent_law.known_probs is not None or self.kind == "lookup":
                if (gain := self.best_count(len(tree) - 1, reach, self.acceptance(parent_law), True, below)[1]) > 0:
                    lookup_nodes[node] = gain
            elif (gain := self.best_count(len(tree) - 1, reach, self.rates.average, False, below)[1] - read_price) > 0:
                model_nodes[node] = gain
        return model_nodes, lookup_nodes

    def levels_below(self, tree: TokenTree, depth: int) -> float | int:
        """How far paths may go on below drafts at the nodes of a level; below 0 where there may be no such drafts."""
        return min(self.depth, tree.max_depth if self.ends_with_rows else math.inf) - depth - 1

    def best_count(
        self, size: int, reach: float, accepted: Sequence[float], by_lookup: bool, below: float | int = math.inf
    ) -> tuple[int, float]:
        """How many drafts each gain more than their price at a node with this reach, and their gain in sum.

        The row's tree has `size` drafted nodes so far. Each draft may go on as a path (`path_gain`), of `below` more
        nodes at most: as many as trees may have levels, unless it is fewer.
        """
        k, total = max(accepted[1], COPY_CONTINUES) if by_lookup else self.rates.average[1], 0.0
        for drafts in range(MAX_NODE_DRAFTS):
            a = reach * (accepted[drafts + 1] - accepted[drafts])
            if (gain := self.path_gain(size + drafts, a, k, by_lookup, below)) <= 0:
                return drafts, total
            total += gain
        return MAX_NODE_DRAFTS, total

    def path_gain(self, size: int, a: float, k: float, by_lookup: bool, below: float | int = math.inf) -> float:
        """The gain of a draft, with the path below it that gains most, beside `size` drafted nodes.

            gain = max over n = 0, ..., below of  a (1 + k + ... + k^n) - (P(size + 1 + n) - P(size)) - n c

        a is the probability that a path ends in this draft rather than in those before it, k the probability that it
        goes on, P the price of so many nodes, and c that of the draft model's pass and reading for each one below.
        """
        padding, prices = self.rows_per_drafting_row, self.tree_prices
        c = 0.0 if by_lookup else self.level_price + padding * self.read_price
        worthless = padding * self.least_price + c  # a token behind which nothing gains any more
        gain = best = a - padding * (prices[size + 1] - prices[size])
        for place in range(size + 1, size + 1 + int(min(below, self.depth - 1))):
            a *= k
            if a <= worthless:
                break
            gain += a - padding * (prices[place + 1] - prices[place]) - c
            if gain > best:
                best = gain
        return best

    def acceptance(self, law: NodeLaw) -> list[float]:
        """Acceptance by number of drafts at a node."""
        if law.accepted is None:
            law.accepted = self.rates.of(law)
        return law.accepted

    def reach(self, tree: TokenTree, node: int) -> float:
        """The probability that the accepted path passes a node, estimated from the nodes above it."""
        if node == 0:
            return 1.0
        if node not in tree.reach:
            parent = tree.parents[node]
            drafts = tree.counts[parent]
            accepted = self.acceptance(tree.laws[parent])[drafts] * self.rates.share_lists[drafts][tree.ranks[node]]
            tree.reach[node] = self.reach(tree, parent) * accepted
        return tree.reach[node]

    def counts(self, trees: list[TokenTree], depth: int) -> list[dict[int, int]]:
        """The number of drafts of every node that was read; the likeliest nodes come first while there is room."""
        counts = [self.counts_of_row(tree, depth) for tree in trees]
        charged_rows = round(len(trees) / self.rows_per_drafting_row)  # a whole number: else rounding might never end
        while 0 < (drafting_rows := sum(map(bool, counts))) < charged_rows:
            charged_rows, self.rows_per_drafting_row = drafting_rows, len(trees) / drafting_rows
            counts = [self.counts_of_row(tree, depth) for tree in trees]
        return counts

    def counts_of_row(self, tree: TokenTree, depth: int) -> dict[int, int]:
        """The number of drafts by node of one row."""
        room, counts, below = self.row_nodes - len(tree), dict[int, int](), self.levels_below(tree, depth)
        reach = {node: self.reach(tree, node) for node in tree.level(depth) if node in tree.laws}
        for node in sorted(reach, key=lambda candidate: -reach[candidate]):
            law = tree.laws[node]
            by_lookup = law.known_probs is not None or self.kind == "lookup"
            size = self.row_nodes - room - 1
            count, gain = self.best_count(size, reach[node], self.acceptance(law), by_lookup, below)
            if depth == 0 and gain <= self.rows_per_drafting_row * self.first_price:  # the root pays for the tree
                count = int(self.is_probing and not by_lookup)
            if count := min(count, room):
                counts[node], room = count, room - count
        return counts
