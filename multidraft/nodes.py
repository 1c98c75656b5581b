"""Where rules meet trees: the verdict at any node of any row, computed when a walk asks for it."""

from collections import defaultdict

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from multidraft.catalogue import Scheme
from multidraft.drafting import Law
from multidraft.drafts import Drafts
from multidraft.sampling import Prefix, Sampling
from multidraft.verification import Outcome
from multidraft.walk import Child, Verdict


class Row:
    """One row's tree as plain numbers: which node a drafted token leads to, and which slots drew at a node."""

    def __init__(self, drafts: Drafts, row: int):
        tree, tokens, alias = drafts.tree, drafts.tokens[row].tolist(), drafts.alias[row].tolist()
        self.token: list[int] = tokens
        self.child: dict[tuple[int, int], int] = {}
        self.drawing: dict[int, list[int]] = defaultdict(list)
        for slot, token in enumerate(tokens):
            if token < 0:
                continue
            if slot:
                self.child[alias[tree.parents[slot]], token] = alias[slot]
            if tree.drafts[slot]:
                self.drawing[alias[slot]].append(slot)

    def has_drafts(self, node: int) -> bool:
        """Whether anything was drawn at the node."""
        return node in self.drawing


class Nodes:
    """The scored tree of every row: target and draft distributions, tuples, and the rule's verdicts."""

    def __init__(
        self, scheme: Scheme, sampling: Sampling, drafts: Drafts, packed: Int[Tensor, "batch nodes"], logits: Tensor
    ):
        self.scheme, self.sampling, self.drafts, self.logits = scheme, sampling, drafts, logits
        self.rows = [Row(drafts, row) for row in range(len(packed))]
        self.place = [dict(zip(slots, range(len(slots)), strict=True)) for slots in packed.tolist()]
        self.acceptance = 0.0  # at the roots, summed over rows

    def verdicts(self, asked: dict[int, tuple[int, float]]) -> dict[int, Verdict]:
        """For each row the rule's verdict at a node with its target scaled by a weight, one batch a draft count."""
        by_count = defaultdict(list)
        for row, (node, _) in asked.items():
            by_count[max(self.drafts.tree.drafts[slot] for slot in self.rows[row].drawing[node])].append(row)
        return {r: v for count, rows in by_count.items() for r, v in self.evaluate(self.scheme.at(count), rows, asked)}

    def evaluate(
        self, scheme: Scheme, rows: list[int], asked: dict[int, tuple[int, float]]
    ) -> list[tuple[int, Verdict]]:
        """Verdicts at nodes that drew the same number of tokens."""
        nodes, weights = zip(*(asked[row] for row in rows), strict=True)
        target, draft, tuples = self.target(rows, nodes), self.draft(rows, nodes), self.tuples(rows, nodes, scheme.law)
        outcome = scheme.verify(scaled(target, weights), draft, tuples)
        ratio = underrated(target, draft, tuples, scheme.law)
        plain = torch.cat([outcome.accept, ratio], -1).tolist()
        asking = enumerate(zip(rows, nodes, tuples.tolist(), plain, strict=True))
        return [
            (row, self.verdict(row, node, tokens, numbers, outcome, i)) for i, (row, node, tokens, numbers) in asking
        ]

    def verdict(
        self, row: int, node: int, tokens: list[int], numbers: list[float], outcome: Outcome, index: int
    ) -> Verdict:
        """The verdict at one node: duplicates added up."""
        width = len(tokens)
        claims: dict[int, float] = defaultdict(float)
        for token, accept in zip(tokens, numbers[:width], strict=True):
            claims[token] += accept
        ratio = dict(zip(tokens, numbers[width:], strict=True))
        if node == 0:
            self.acceptance += sum(claims.values())
        child = self.rows[row].child
        children = tuple(Child(child[node, t], claims[t], ratio[t]) for t in claims if claims[t] > 0)
        return Verdict(children, lambda: outcome.residual[index], lambda: float(outcome.rest[index]))

    def target(self, rows: list[int], nodes: tuple[int, ...]) -> Float[Tensor, "asked vocabulary"]:
        """The target's distribution at one node of each of the rows."""
        return self.sampling.target(*self.scored(rows, nodes))

    def scored(
        self, rows: list[int], nodes: tuple[int, ...]
    ) -> tuple[Float[Tensor, "asked vocabulary"], list[Prefix] | None]:
        """The target's logits at one node of each of the rows, and the sequences that lead there."""
        places = [self.place[row][node] for row, node in zip(rows, nodes, strict=True)]
        return self.logits[rows, places], self.drafts.prefixes(zip(rows, nodes, strict=True))

    def draft(self, rows: list[int], nodes: tuple[int, ...]) -> Float[Tensor, "asked *drafts vocabulary"]:
        """The draft distributions that the nodes' tuples were drawn from: of a node's slots, the one that drew most."""
        count = self.drafts.tree.drafts.__getitem__
        slots = [(row, max(self.rows[row].drawing[node], key=count)) for row, node in zip(rows, nodes, strict=True)]
        rows_of = [self.drafts.draft[slot][row : row + 1] for row, slot in slots]
        return torch.cat(rows_of) if len(rows_of) > 1 else rows_of[0]

    def rank(self, row: int, node: int, slot: int) -> int:
        """Which of the drafts at a node made the child `slot`: 0 for the one drawn first."""
        tree = self.drafts.tree
        parent = tree.parents[slot]
        before = sum(tree.drafts[other] for other in self.rows[row].drawing[node] if other < parent)
        return before + slot - tree.first_child[parent]

    def tuples(self, rows: list[int], nodes: tuple[int, ...], law: Law) -> Int[Tensor, "asked width"]:
        """The nodes' tuples: the draws of all slots of a node, one after another; shorter ones are filled up."""
        drawing = [(row, self.rows[row].drawing[node]) for row, node in zip(rows, nodes, strict=True)]
        if len(drawing) == 1 and len(drawing[0][1]) == 1:  # views instead of copies
            row, (slot,) = drawing[0]
            return self.drafts.drafted[row : row + 1, slot, : law.width]
        drafted = [self.drafts.drafted[row, slots, : law.width].flatten() for row, slots in drawing]
        return pad_sequence(drafted, batch_first=True, padding_value=-1)


def scaled(target: Float[Tensor, "asked vocabulary"], weights: tuple[float, ...]) -> Float[Tensor, "asked vocabulary"]:
    """Every row times its weight."""
    if all(weight == 1 for weight in weights):
        return target
    return target * torch.tensor(weights, dtype=target.dtype, device=target.device)[:, None]


def underrated(
    target: Float[Tensor, "asked vocabulary"],
    draft: Float[Tensor, "asked *drafts vocabulary"],
    tuples: Int[Tensor, "asked width"],
    law: Law,
) -> Float[Tensor, "asked width"]:
    """Target over draft at every drafted token; where there is one child at most, nobody asks."""
    if law.drafts == 1 and tuples.shape[-1] == law.width:  # wider where equal nodes have drawn several times
        return torch.zeros_like(tuples, dtype=target.dtype)
    index = tuples.clamp(min=0)
    return target.gather(-1, index) / law.overall(draft).gather(-1, index)
