"""Where rules meet trees: the verdict at any node of any row, computed when a walk asks for it."""

from collections import defaultdict

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from multidraft.catalogue import Scheme
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
        target, draft = self.target(rows, nodes), self.draft(rows, nodes)
        drafted = [self.drafted(row, node, scheme.law.width) for row, node in zip(rows, nodes, strict=True)]
        tuples = pad_sequence(drafted, batch_first=True, padding_value=-1)
        scaled = target * torch.tensor(weights, dtype=target.dtype, device=target.device)[:, None]
        outcome = scheme.verify(scaled, draft, tuples)
        index = tuples.clamp(min=0)
        ratio = target.gather(-1, index) / scheme.law.overall(draft).gather(-1, index)
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
        return torch.stack([self.drafts.draft[slot][row] for row, slot in slots])

    def drafted(self, row: int, node: int, width: int) -> Int[Tensor, " width"]:
        """The node's tuple: the draws of all its slots, one after another."""
        return self.drafts.drafted[row, self.rows[row].drawing[node], :width].flatten()
