"""Positions that walks come to: what both models say there, and what every number of drafts would have accepted."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.autotune.rates import WEIGHTS, Rates
from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.shapes import Fixed
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import Verdict
from multidraft.verification.distributions import tempered
from multidraft.verification.scheme import Scheme

FEW, EVERY = 2, 2  # with more drafts there is less noise in what is accepted, so every second position will do


@dataclass
class Positions:
    """Nodes that walks have come to: target and draft distributions, the draft model's own, and what was accepted."""

    targets: list[Float[Tensor, " vocabulary"]] = field(default_factory=list)
    drafts: list[Float[Tensor, " vocabulary"]] = field(default_factory=list)
    sure: list[Float[Tensor, " vocabulary"]] = field(default_factory=list)  # of the draft model at temperature 1
    seen: list[tuple[int, int, float, float]] = field(default_factory=list)  # depth, drafts, weight, claimed

    def __len__(self) -> int:
        return len(self.targets)

    def passing(self) -> Float[Tensor, " positions"]:
        """How likely walks pass each node, of all nodes that they try, with a sum of one."""
        weights = torch.tensor([weight for _, _, weight, _ in self.seen], dtype=torch.float64)
        return weights / weights.sum()


class Listening(Fixed):
    """A fixed tree that keeps the nodes that walks come to, where up to `most` drafts could have been drawn."""

    def __init__(self, tree: Tree, positions: Positions, most: int):
        super().__init__(tree)
        self.positions, self.most_drafts = positions, most

    def hear(self, tree: ScoredTree, row: int, node: int, weight: float, verdict: Verdict) -> None:
        here, found = tree.rows[row], self.positions
        found.targets.append(tree.target([row], (node,))[0])
        found.drafts.append(tree.draft([row], (node,))[0])
        found.sure.append(tree.drafts.logits_at(row, node).float().softmax(-1))
        found.seen.append((here.tree.depths[node], here.count(node), weight, verdict.acceptance))


@dataclass(frozen=True)
class Judged:
    """What a rule would have accepted at every position of the same drafts, which are drawn once."""

    acceptance: list[Float[Tensor, " positions"]]  # by weight of the target, over the weight
    claims: Float[Tensor, "positions drafts"]  # of every child, 0 where there is none
    children: Int[Tensor, "positions drafts"]  # their tokens, -1 where there is none


def judged(
    scheme: Scheme, target: Tensor, draft: Tensor, generator: torch.Generator, weights: Sequence[float] = WEIGHTS
) -> Judged:
    """Tuples drawn and verified at all positions at once, first with a full target, then with it scaled down."""
    drafted = scheme.draw(draft, generator)
    accepted = [scheme.verify(target * weight, draft, drafted).accept.double() for weight in weights]
    children = scheme.law.children(drafted)
    claims = ((children[..., None] == drafted[..., None, :]) * accepted[0][..., None, :]).sum(-1)
    return Judged([own.sum(-1) / weight for own, weight in zip(accepted, weights, strict=True)], claims, children)


def rates_of(scheme: Scheme, positions: Positions, most: int, tempers: list[float], seed: int = 0) -> Rates:
    """Averages over positions, for every number of drafts up to `most`."""
    acceptance, shares, weights = [[0.0] * len(WEIGHTS)], [list[float]()], [list[float]()]
    generator = torch.Generator().manual_seed(seed)
    target, draft, likely = torch.stack(positions.targets), torch.stack(positions.drafts), positions.passing()
    for n in range(1, most + 1):
        every = EVERY if n > FEW else 1
        passing = likely[::every] / likely[::every].sum()
        q = tempered(draft[::every], tempers[n])
        found = judged(scheme.with_drafts(n), target[::every], q, generator)
        acceptance.append([float(rate @ passing) for rate in found.acceptance])
        total = passing @ found.claims
        shares.append((total / total.sum().clamp(min=1e-9)).tolist())
        weights.append((passing @ (found.claims * entered(found.claims)) / total.clamp(min=1e-9)).tolist())
    return Rates(acceptance, shares, weights)


def entered(claims: Float[Tensor, "positions drafts"]) -> Float[Tensor, "positions drafts"]:
    """The weight with which the deferred walk enters each child: its share of what those before it have left."""
    ordered, places = claims.sort(-1, descending=True)
    left = 1 - torch.nn.functional.pad(ordered.cumsum(-1)[..., :-1], (1, 0))
    return (claims / left.gather(-1, places.argsort(-1)).clamp(min=1e-9)).clamp(max=1.0)
