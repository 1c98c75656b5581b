"""Positions of real text: what both models say there, and what every number of drafts would have accepted."""

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.catalogue import Scheme
from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.shapes import Fixed
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import Verdict
from multidraft.planning.predictions import MOST, Predictions, by_class


@dataclass
class Positions:
    """Target and draft distributions, and the draft model's own at temperature 1."""

    targets: list[Tensor] = field(default_factory=list)
    drafts: list[Tensor] = field(default_factory=list)
    sure: list[Tensor] = field(default_factory=list)

    def stacked(self) -> tuple[Tensor, Tensor, Tensor]:
        return torch.stack(self.targets), torch.stack(self.drafts), torch.stack(self.sure)


class Listening(Fixed):
    """A fixed tree that keeps the positions that walks pass."""

    def __init__(self, tree: Tree, positions: Positions, most: int):
        super().__init__(tree)
        self.positions, self.most_drafts = positions, most

    def hear(self, tree: ScoredTree, row: int, node: int, weight: float, verdict: Verdict) -> None:
        self.positions.targets.append(tree.target([row], (node,))[0])
        self.positions.drafts.append(tree.draft([row], (node,))[0])
        self.positions.sure.append(sure_at(tree, row, node))


def sure_at(tree: ScoredTree, row: int, node: int) -> Float[Tensor, " vocabulary"]:
    drafts, before = tree.drafts, 0
    for level in drafts.logits:
        here = drafts.read[row][before : before + level.shape[1]]
        if node in here:
            return level[row, here.index(node)].float().softmax(-1)
        before += level.shape[1]
    raise IndexError


def tables(scheme: Scheme, positions: Positions, draws: int = 4, tempers=None, seed: int = 0) -> Predictions:
    """What each number of drafts would have accepted."""
    target, draft, sure = positions.stacked()
    generator = torch.Generator().manual_seed(seed)
    top = sure.topk(MOST, -1).values.double().numpy()
    accepted = np.zeros((MOST + 1, len(target)))
    claims = [[]]
    shares = [[]]
    for n in range(1, MOST + 1):
        own = scheme.with_drafts(n)
        q = draft if not tempers else tempered(draft, tempers[n])
        rows = [([], []) for _ in range(n)]
        for _ in range(draws if n > 0 else 1):
            drafted = own.draw(q, generator)
            accept = own.verify(target, q, drafted).accept.double()
            accepted[n] += accept.sum(-1).numpy() / draws
            children = own.law.children(drafted)
            for p, (kids, tokens, acc) in enumerate(zip(children.tolist(), drafted.tolist(), accept.tolist())):
                for i, kid in enumerate(kids):
                    if kid < 0: continue
                    rows[i][0].append(sum(a for t, a in zip(tokens, acc) if t == kid))
                    rows[i][1].append(float(sure[p, kid]))
        claims.append([by_class(np.array(a), np.array(b)) for a, b in rows])
        shares.append([float(sum(a)) / (draws * len(target)) for a, b in rows])
    gains = [[]] + [by_class(accepted[n] - accepted[n - 1], top[:, n - 1]) for n in range(1, MOST + 1)]
    return Predictions(gains, claims, accepted.mean(1).tolist(), shares)


def tempered(draft: Tensor, temper: float) -> Tensor:
    if temper == 1: return draft
    raised = draft ** (1 / temper)
    return raised / raised.sum(-1, keepdim=True)
