"""Where rules meet trees: the verdict at any node of any row, computed when a walk asks for it."""

from collections import defaultdict
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.decoding.last_tokens import draw_last
from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.walks import Child, Ending, Verdict
from multidraft.verification.outcome import Outcome
from multidraft.verification.rules.coupling import residual
from multidraft.verification.scheme import Scheme

Asked = dict[int, tuple[int, float]]  # by row a node, and the weight that its target is scaled to
NEGLIGIBLE = 1e-15  # claims below it are rounding: whether they take a coin must not depend on a row's neighbours


class Verdicts:
    """A scheme's rule over a scored tree."""

    def __init__(self, scheme: Scheme, tree: ScoredTree):
        self.scheme, self.tree = scheme, tree

    def __call__(self, asked: Asked) -> dict[int, Verdict]:
        """For each row the rule's verdict at a node with its target scaled by a weight.

        A single draft is coupled with the target, which takes two numbers; all else goes in one batch a draft count.
        """
        answers, batches = dict[int, Verdict](), defaultdict[Scheme, list[int]](list)
        for row, (node, weight) in asked.items():
            line = self.tree.rows[row]
            scheme, children = self.scheme.with_drafts(line.count(node)), line.children.get(node)
            if scheme.is_coupling and children and len(line.drew[node]) == 1:
                answers[row] = self.coupled(row, node, weight, *next(iter(children.items())))
            else:
                batches[scheme].append(row)
        for scheme, rows in batches.items():
            answers |= self.evaluate(scheme, rows, asked)
        return answers

    def last(self, endings: list[Ending], numbers: list[float]) -> list[int]:
        """The one more token of every row, drawn with these numbers."""
        return draw_last(self.tree, endings, numbers)

    def coupled(self, row: int, node: int, weight: float, token: int, slot: int) -> Verdict:
        """The verdict on a single draft: p/q says what it may claim, and the rest is computed if it is rejected."""
        target, draft = self.tree.one(row, node), self.tree.draft([row], (node,))[0]
        likely, drawn = weight * float(target[token]), float(draft[token])
        accept = 1.0 if likely >= drawn else likely / drawn

        @cache
        def left() -> Tensor:
            return residual(target, draft, weight, accept)

        children = (Child(slot, accept),) if accept > NEGLIGIBLE else ()
        return Verdict(children, left, lambda: float(left().sum()))

    def evaluate(self, scheme: Scheme, rows: list[int], asked: Asked) -> dict[int, Verdict]:
        """Verdicts at nodes that drew the same number of tokens."""
        nodes, weights = zip(*(asked[row] for row in rows), strict=True)
        tree = self.tree
        target, draft, tuples = tree.target(rows, nodes), tree.draft(rows, nodes), tree.tuples(rows, nodes, scheme.law)
        outcome = scheme.verify(scaled(target, weights), draft, tuples)
        parts = enumerate(zip(rows, nodes, tuples.tolist(), outcome.accept.tolist(), strict=True))
        return {
            row: verdict(tree.rows[row].children.get(node, {}), tokens, accept, outcome, i)
            for i, (row, node, tokens, accept) in parts
        }


def verdict(children: dict[int, int], tokens: list[int], accept: list[float], outcome: Outcome, index: int) -> Verdict:
    """The verdict at one node: duplicates added up, which `children` leads from tokens to nodes."""
    claims: dict[int, float] = defaultdict(float)
    for token, claim in zip(tokens, accept, strict=True):
        claims[token] += claim
    found = tuple(Child(children[token], claim) for token, claim in claims.items() if claim > NEGLIGIBLE)
    return Verdict(found, lambda: outcome.residual[index], lambda: float(outcome.residual_mass[index]))


def scaled(target: Float[Tensor, "asked vocabulary"], weights: tuple[float, ...]) -> Float[Tensor, "asked vocabulary"]:
    """Every row times its weight."""
    if len(weights) == 1:
        return target if weights[0] == 1 else target * weights[0]
    return target * torch.tensor(weights, dtype=target.dtype, device=target.device)[:, None]
