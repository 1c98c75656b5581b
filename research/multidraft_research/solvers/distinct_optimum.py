"""The optimal acceptance rate for drafts from several distributions (the law `distinct`), by branch and bound.

The best token set is decided by its draft masses `a_j`, so the search for it runs over boxes `low <= a <= high`; the
proof is in docs/theory.md, section 8, and the names below are those of that page.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.distributions import normalise
from multidraft.verification.law import Law
from multidraft.verification.laws import Distinct
from multidraft.verification.optimum import optimum
from multidraft.verification.precision import Draft, Rates, Rows

ACCURACY = 1e-11  # boxes that cannot improve by more are dropped
ROUNDING_OF_SUMS = 1e-13
MAX_BOXES = 100_000
TargetLaw = Float[np.ndarray, " vocab"]
Masses = Float[np.ndarray, " drafts"]
Drafts = Float[np.ndarray, "drafts vocab"]


def optimum_of(target: Rows, draft: Draft, law: Law) -> Rates:
    """The optimal acceptance rate for drafts of any law of the product, `distinct` too."""
    if not isinstance(law, Distinct):
        return optimum(target, draft, law)
    a = law.draft_probability  # min P(H) + a (1 - Q(H)) = a min P(H) / a + 1 - Q(H)
    return a * optimal_distinct(target / a, draft, law.drafts)


def optimal_distinct(target: Rows, draft: Draft, drafts: int | Int[Tensor, "*batch"]) -> Rates:
    """Largest acceptance rate with draft `j` drawn from `draft[..., j, :]`: 1 + min_H target(H) - prod_j draft_j(H).

    To 1e-11, row by row (at 32,000 tokens 30 ms a row for two drafts, one second for eight). `target` may sum to less
    than one; the result has its dtype. Raises AdviceError where shapes do not fit.

    Towards Optimal Multi-Draft Speculative Decoding, eq. (8); Global Resolution, Appendix C.

    >>> optimal_distinct(torch.tensor([0.25, 0.75]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]), drafts=2)
    tensor(0.2500)
    """
    fits = draft.ndim > 1 and draft.shape[:-2] + draft.shape[-1:] == target.shape
    if not fits or bool((torch.as_tensor(drafts) != draft.shape[-2]).any()):
        raise AdviceError(
            f"target {tuple(target.shape)} and draft {tuple(draft.shape)} do not fit; {drafts} distinct drafts need "
            "(..., drafts, vocabulary), one distribution a draft"
        )
    drawn, rates = normalise(draft.double().cpu().reshape(-1, *draft.shape[-2:])), list[float]()
    for p, q in zip(target.double().cpu().reshape(-1, target.shape[-1]).numpy(), drawn.numpy(), strict=True):
        best = best_set(p, q)
        rates.append(min(1.0, 1 + p[best].sum() - q[:, best].sum(-1).prod()))
    return torch.tensor(rates, dtype=torch.float64).reshape(target.shape[:-1]).to(target)


@dataclass(frozen=True)
class Box:
    """The sets with masses in [low, high] that hold the tokens decided to be in and, besides, only undecided ones."""

    low: Masses
    high: Masses
    target_in: float  # summed over the tokens that are decided to be in
    draft_in: Masses
    undecided: Int[np.ndarray, " some"]


def best_set(target: TargetLaw, draft: Drafts) -> Bool[np.ndarray, " vocab"]:
    """The token set `H` with the smallest `target(H) - prod_j draft_j(H)`, to 1e-11, for any vocabulary size.

    Three boxes for two drafts in practice, some hundred for eight. Raises RuntimeError beyond MAX_BOXES (never seen).

    >>> best_set(np.array([0.9, 0.1]), np.array([[0.5, 0.5], [0.5, 0.5]]))
    array([False,  True])
    """
    best, best_cost = np.zeros(len(target), dtype=bool), -float(len(draft) == 0)
    boxes = [Box(np.zeros(len(draft)), draft.sum(1), 0.0, np.zeros(len(draft)), np.arange(len(target)))]
    for _ in range(MAX_BOXES):
        if not boxes:
            return best
        box = narrow_box(boxes.pop(), target, draft)
        if box is None:
            continue
        center = (box.low + box.high) / 2
        chosen = target < slope(center) @ draft
        if (cost := float(target[chosen].sum() - draft[:, chosen].sum(1).prod())) < best_cost:
            best, best_cost = chosen, cost
        if lower_bound(box, target, draft) < best_cost - ACCURACY:  # cut across its longest side
            side = np.arange(len(center)) == np.argmax(box.high - box.low)
            boxes += [replace(box, high=np.where(side, center, box.high))]
            boxes += [replace(box, low=np.where(side, center, box.low))]
    raise RuntimeError(f"{MAX_BOXES:,} boxes were not enough for a set within {ACCURACY:g} of the best")


def narrow_box(box: Box, target: TargetLaw, draft: Drafts) -> Box | None:
    """Decide tokens and shrink the box as long as one helps the other; None if no best set is in it."""
    while True:
        p, q = target[box.undecided], draft[:, box.undecided]
        joins, goes = p < product_gain(box.low, q), p > -product_gain(box.high, -np.minimum(q, box.high[:, None]))
        if (joins & goes).any():
            return None
        into, undecided = box.undecided[joins], box.undecided[~(joins | goes)]
        draft_in = box.draft_in + draft[:, into].sum(1)
        low = np.maximum(box.low, draft_in - ROUNDING_OF_SUMS)
        high = np.minimum(box.high, draft_in + draft[:, undecided].sum(1) + ROUNDING_OF_SUMS)
        if (low > high).any():
            return None
        settled = len(undecided) == len(box.undecided)
        box = Box(low, high, box.target_in + target[into].sum(), draft_in, undecided)
        if settled:
            return box


def lower_bound(box: Box, target: TargetLaw, draft: Drafts) -> float:
    """A cost that no set of the box falls below: linear around its center, with the remainder at its largest."""
    center, half = (box.low + box.high) / 2, (box.high - box.low) / 2
    g = slope(center)
    curved = product_gain(center, half[:, None])[0] - g @ half
    gain = np.maximum(g @ draft[:, box.undecided] - target[box.undecided], 0.0).sum()
    return float(g @ center - center.prod() - curved - gain - (g @ box.draft_in - box.target_in))


def slope(masses: Masses) -> Masses:
    """The product of all masses but one, for each of them."""
    before = np.concatenate([[1.0], masses.cumprod()[:-1]])
    after = np.concatenate([[1.0], masses[::-1].cumprod()[:-1]])[::-1]
    return before * after


def product_gain(masses: Masses, new_masses: Float[np.ndarray, "drafts some"]) -> Float[np.ndarray, " some"]:
    """`prod_j (masses_j + more_j) - prod_j masses_j`, one draft at a time, so that small terms do not cancel."""
    product, difference = 1.0, np.zeros(new_masses.shape[1])
    for mass, extra in zip(masses, new_masses, strict=True):
        difference = difference * (mass + extra) + product * extra
        product *= mass
    return difference
