"""Positions of real text: what both models say there, and what every number of drafts would have accepted."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.catalogue import Scheme
from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.shapes import Fixed
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import Verdict
from multidraft.numerics.distributions import tempered
from multidraft.planning.rates import WEIGHTS, Rates

DRAWS = 2  # tuples drawn at a position for every number of drafts


@dataclass
class Positions:
    """Nodes that walks have come to: target and draft distributions, the draft model's own, and what was accepted."""

    targets: list[Float[Tensor, " vocabulary"]] = field(default_factory=list)
    drafts: list[Float[Tensor, " vocabulary"]] = field(default_factory=list)
    sure: list[Float[Tensor, " vocabulary"]] = field(default_factory=list)  # of the draft model at temperature 1
    seen: list[tuple[int, int, float, float]] = field(default_factory=list)  # depth, drafts, weight, claimed

    def __len__(self) -> int:
        return len(self.targets)


class Listening(Fixed):
    """A fixed tree that keeps the nodes that walks come to."""

    def __init__(self, tree: Tree, positions: Positions):
        super().__init__(tree)
        self.positions = positions

    def hear(self, tree: ScoredTree, row: int, node: int, weight: float, verdict: Verdict) -> None:
        here, found = tree.rows[row], self.positions
        found.targets.append(tree.target([row], (node,))[0])
        found.drafts.append(tree.draft([row], (node,))[0])
        found.sure.append(tree.drafts.logits_at(row, node).float().softmax(-1))
        found.seen.append((here.tree.depths[node], here.count(node), weight, verdict.acceptance))


@dataclass(frozen=True)
class Judged:
    """What a rule would have accepted at every position, with a number of drafts at each."""

    acceptance: list[Float[Tensor, " positions"]]  # by weight, over the weight
    claims: list[Float[Tensor, "positions drafts"]]  # by draw: of every child, 0 where there is none
    children: list[Tensor]  # by draw: the children's tokens, -1 where there is none


def judged(
    scheme: Scheme, target: Tensor, draft: Tensor, generator: torch.Generator, weights: Sequence[float] = WEIGHTS
) -> Judged:
    """Tuples drawn and verified at all positions at once, the first with a full target, others with it scaled down."""
    acceptance, claims, children = [], [], []
    for weight in weights:
        for _ in range(DRAWS if weight == 1 else 1):
            drafted = scheme.draw(draft, generator)
            accept = scheme.verify(target * weight, draft, drafted).accept.double()
            acceptance.append(accept.sum(-1) / weight)
            if weight == 1:
                children.append(scheme.law.children(drafted))
                claims.append(((children[-1][..., None] == drafted[..., None, :]) * accept[..., None, :]).sum(-1))
    return Judged([torch.stack(acceptance[:DRAWS]).mean(0), *acceptance[DRAWS:]], claims, children)


def rates_of(scheme: Scheme, positions: Positions, most: int, tempers: list[float], seed: int = 0) -> Rates:
    """Averages over positions, for every number of drafts up to `most`."""
    acceptance, shares, weights = [[0.0] * len(WEIGHTS)], [list[float]()], [list[float]()]
    generator = torch.Generator().manual_seed(seed)
    target, draft = torch.stack(positions.targets), torch.stack(positions.drafts)
    for n in range(1, most + 1):
        found = judged(scheme.with_drafts(n), target, tempered(draft, tempers[n]), generator)
        acceptance.append([float(rate.mean()) for rate in found.acceptance])
        claims = torch.cat(found.claims)
        left = 1 - torch.nn.functional.pad(claims.sort(-1, descending=True).values.cumsum(-1)[..., :-1], (1, 0))
        ordered = claims.sort(-1, descending=True).indices.argsort(-1)
        entered = (claims / left.gather(-1, ordered).clamp(min=1e-9)).clamp(max=1.0)
        total = claims.sum(0)
        shares.append((total / total.sum().clamp(min=1e-9)).tolist())
        weights.append(((claims * entered).sum(0) / total.clamp(min=1e-9)).tolist())
    return Rates(acceptance, shares, weights)
