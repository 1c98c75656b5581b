"""A scheme tried in every corner: thousands of adversarial pairs, each summed over every tuple of drafts."""

from dataclasses import dataclass
from itertools import cycle, islice, product

import torch
from torch import Tensor

from multidraft.auditing.pairs import drafting
from multidraft.verification.outcome import over_all_tuples
from multidraft.verification.precision import MAX_MISSING_MASS
from multidraft.verification.registry import entries, scheme
from multidraft.verification.scheme import Scheme
from multidraft_research.audits.adversarial import KINDS, adversarial

AT_ONCE = 25
ROUNDING = {torch.float64: 1e-12, torch.float32: 3e-6}  # a float32 distribution sums to one no better than that
TOTALS = [1.0, 0.37, 1 - 3e-5]  # of the target
PROBABILITIES = [1.0, 1.0, 0.6]  # of drafting at all
SHAPES = [(2, 2), (3, 3), (1, 2), (4, 1), (2, 3), (3, 1), (2, 4), (5, 2), (2, 8)]  # tokens, drafts


@dataclass
class Corners:
    """What was tried, and the worst error seen in units of what rounding allows: at most one is as good as none."""

    pairs: int = 0
    tuples: int = 0
    law: float = 0.0  # of the law of the emitted token, at any token
    total: float = 0.0  # of accept plus residual of a tuple: one for a full target, at most one otherwise
    rest: float = 0.0  # of the sum of the residual where it is computed on its own
    negative: float = 0.0  # the most negative probability; infinite for what is no number
    banned: float = 0.0  # probability of a token that the target never emits: infinitely bad

    @property
    def worst(self) -> float:
        """The largest of the errors."""
        return max(self.law, self.total, self.rest, self.negative, self.banned)


def try_corners(name: str, pairs: int, seed: int = 0) -> Corners:
    """Every kind of pair in turn, every size, number of drafts, precision and total of the target."""
    corners = Corners()
    cases = product(PROBABILITIES, TOTALS, ROUNDING, SHAPES, KINDS)
    for batch, case in enumerate(islice(cycle(shuffle(list(cases), seed)), -(-pairs // AT_ONCE))):
        probability, total, dtype, (vocabulary, drafts), kind = case
        chosen = scheme(name, entries()[name].law.fixed_drafts or drafts, draft_probability=probability)
        target, draft = adversarial(kind, AT_ONCE, vocabulary, seed + batch)
        examine(corners, chosen, (total * target).to(dtype), drafting(chosen.law, draft.to(dtype)))
    return corners


def shuffle(cases: list, seed: int) -> list:
    """The same cases in another order, so that few of them are a fair choice."""
    order = torch.randperm(len(cases), generator=torch.Generator().manual_seed(seed)).tolist()
    return [cases[i] for i in order]


def examine(corners: Corners, chosen: Scheme, target: Tensor, draft: Tensor) -> None:
    """Add a batch of pairs to what was found."""
    summed = over_all_tuples(chosen.entry.rule, chosen.law, target, draft)
    row, outcome, law = summed.row, summed.outcome, summed.emitted
    accept, residual, residual_mass = (x.double() for x in (outcome.accept, outcome.residual, outcome.residual_mass))
    total, full = accept.sum(-1) + residual.sum(-1), target.sum(-1, dtype=torch.float64)[row] > 1 - MAX_MISSING_MASS
    over = (total - 1).clamp(min=0)
    unit = ROUNDING[target.dtype]
    corners.pairs, corners.tuples = corners.pairs + len(target), corners.tuples + len(row)
    corners.law = largest(corners.law, (law - target).abs() / unit)
    corners.total = largest(corners.total, torch.where(full, (total - 1).abs(), over) / unit)
    corners.rest = largest(corners.rest, (residual_mass - residual.sum(-1)).abs() / unit)
    corners.negative = largest(corners.negative, -torch.cat([accept, residual], -1) / unit)
    corners.banned = largest(corners.banned, torch.where(law[target == 0] > 0, torch.inf, 0.0))


def largest(known: float, values: Tensor) -> float:
    """The largest value so far; what is no number is infinite."""
    values = torch.nan_to_num(values, nan=torch.inf, posinf=torch.inf)
    return max(known, float(values.max())) if values.numel() else known


def exact_schemes() -> list[str]:
    """Those that are for large vocabularies too."""
    return [name for name, entry in entries().items() if not entry.small]
