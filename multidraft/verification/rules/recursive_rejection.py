"""Recursive rejection, which tries the drafts one after another (SpecInfer; Multi-Candidate SD).

Single-draft coupling, which is ordinary speculative sampling, is a part of other rules too.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.law import Law
from multidraft.verification.outcome import Outcome
from multidraft.verification.precision import (
    MAX_MISSING_MASS,
    NEGLIGIBLE_MASS,
    Draft,
    Rates,
    Rows,
    Tuples,
    next_target,
    ratio,
)


def acceptance(target: Rows, draft: Rows, token: Int[Tensor, "*batch"]) -> Rates:
    """The probability of accepting `token`, drawn from `draft`: min(1, t(x) / q(x)), in float64; 0 if it is empty."""
    index = token.clamp(min=0)[..., None]
    accept = ratio(target.gather(-1, index), draft.gather(-1, index))[..., 0]
    return accept.double() * (token >= 0)


def remainder(target: Rows, draft: Rows) -> Rows:
    """(t - q)_+, what of the target a token drawn from `draft` cannot cover."""
    return (target - draft).clamp_(min=0)


def single_draft_residual(
    target: Float[np.ndarray, " places"], draft: Float[np.ndarray, " drafted"], weight: float, accept: float
) -> Float[np.ndarray, " places"]:
    """Probability of emitting each token otherwise than as the one drawn from `draft`, the first places, and accepted.

    The target is scaled to `weight`. NumPy's calls cost less than `couple`'s.
    """
    scaled = weight * target
    left = scaled.copy()
    left[: len(draft)] -= draft
    np.maximum(left, 0.0, out=left)
    left += NEGLIGIBLE_MASS * scaled
    lacks = 1 - scaled.sum()
    left *= (1 - accept) / ((lacks if lacks > MAX_MISSING_MASS else 0.0) + left.sum())
    return left


def couple(target: Rows, draft: Rows, token: Int[Tensor, "*batch"]) -> tuple[Rates, Rows]:
    """The probability of accepting `token`, drawn from `draft`, and the next target if it is not.

        b = min(1, t(x) / q(x)),   t <- (t - q)_+ / (1 - sum min(t, q))

    `draft` sums to less than one where nothing may be drawn; an empty position (token -1) accepts nothing.
    Towards Optimal MDSD, eq. 5; Randomised Drafting, Algorithm 2.
    """
    return acceptance(target, draft, token).to(target.dtype), next_target(remainder(target, draft), target)


def recursive_rejection(target: Rows, draft: Draft, drafted: Tuples, law: Law) -> Outcome:
    """Each draft is coupled with the target of its round, by the law it was drawn from given the earlier drafts.

        accept_j = b_j prod_{i<j} (1 - b_i),   residual = t_n prod_j (1 - b_j)

    Multi-Candidate SD, Algorithms 1 and 2; SpecInfer's multi-round form. Where nothing may be drafted, the first round
    knows: the tuples without drafts are handed what it leaves. Not optimal with more than one draft.
    """
    alive, accept, start, dtype = torch.ones_like(target[..., 0]), [], law.draft_probability, target.dtype
    for j in range(drafted.shape[-1]):
        conditional, total = law.conditional(draft, drafted[..., :j]), start if j == 0 else 1.0
        b, new_target = couple(target, conditional * total if total < 1 else conditional, drafted[..., j])
        target = new_target if j == 0 else torch.where(drafted[..., j, None] < 0, target, new_target)
        accept.append(alive * b)
        alive = alive * (1 - b)
    return Outcome(torch.stack(accept, -1).to(dtype), (alive[..., None] * target).to(dtype), drafted)


def rate_of_rejection(target: Rows, draft: Draft, law: Law) -> Rates:
    """The acceptance rate for drafts whose law does not depend on each other.

        1 - prod_j (1 - sum min(t_j, q_j)),    t_{j+1} = (t_j - q_j)_+ / (1 - sum min(t_j, q_j))

    The first round has a q in place of q, and the others happen with the probability a - sum min(t_1, a q) only.
    """
    total = torch.full_like(target[..., 0], law.draft_probability)
    accepted = torch.zeros_like(total)
    for j in range(law.drafts):
        before = torch.empty((*target.shape[:-1], j), dtype=torch.int64, device=target.device)
        q = law.conditional(draft, before) * (law.draft_probability if j == 0 else 1)
        overlap = torch.minimum(target, q)
        accepted = accepted + (total - accepted) * overlap.sum(-1) / (total if j == 0 else 1)
        target = next_target(target - overlap, target)
    return accepted
