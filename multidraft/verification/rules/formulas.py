"""Exact acceptance rates in closed form, for each scheme that has one; None where the settings leave the formula."""

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.verification.distributions import most_likely
from multidraft.verification.law import Law, at_each, without
from multidraft.verification.laws.anchored import Anchored
from multidraft.verification.optima.iid import optimal_iid
from multidraft.verification.precision import next_target
from multidraft.verification.rules.k_sequential import accepted as k_sequential

__all__ = [
    "k_sequential",
    "lorenz_anchored",
    "lorenz_iid",
    "maximal_coupling",
    "naive_distinct",
    "naive_iid",
    "naive_top",
    "recursive_rejection",
]

Rates = Float[Tensor, "*batch"]
Distributions = Float[Tensor, "*batch vocabulary"]


def lorenz_iid(target: Distributions, draft: Distributions, law: Law) -> Rates:
    """alpha* = P_K + min(0, min_k F(Q_k) - P_k)."""
    return optimal_iid(target, draft, law.drafts, law.draft_probability)


def recursive_rejection(target: Distributions, draft: Float[Tensor, "*drafting vocabulary"], law: Law) -> Rates:
    """1 - prod_j (1 - sum min(t_j, q_j)), where t_{j+1} = (t_j - q_j)_+ / (1 - sum min(t_j, q_j)) whatever was drawn.

    The first round has a q in place of q, and the others happen with the probability a - sum min(t_1, a q) only.
    """
    total = torch.full_like(target[..., 0], law.draft_probability)
    accepted = torch.zeros_like(total)
    nothing = torch.empty((*target.shape[:-1], 0), dtype=torch.int64, device=target.device)
    for j in range(law.drafts):
        q = law.conditional(draft, nothing.new_empty((*target.shape[:-1], j))) * (
            law.draft_probability if j == 0 else 1
        )
        overlap = torch.minimum(target, q)
        accepted = accepted + (total - accepted) * overlap.sum(-1) / (total if j == 0 else 1)
        target = next_target(target - overlap, target)
    return accepted


def naive_iid(target: Distributions, draft: Distributions, law: Law) -> Rates:
    """a sum_i p_i (1 - (1 - q_i)^n)."""
    return law.draft_probability * (target * (1 - (1 - draft) ** law.drafts)).sum(-1)


def naive_top(target: Distributions, draft: Distributions, law: Law) -> Rates:
    """a p(the n most likely tokens of q)."""
    return law.draft_probability * at_each(target, most_likely(draft, law.drafts)).sum(-1)


def naive_distinct(target: Distributions, draft: Float[Tensor, "*batch drafts vocabulary"], law: Law) -> Rates:
    """a sum_i p_i (1 - prod_j (1 - q_j,i))."""
    return law.draft_probability * (target * (1 - (1 - draft).prod(-2))).sum(-1)


def maximal_coupling(target: Distributions, draft: Distributions, law: Law) -> Rates:
    """m + (a - m) t(sure tokens), with m = sum min(p, a q') and t = (p - a q')_+ / (1 - m), the next target."""
    sure, a = most_likely(draft, law.drafts - 1), law.draft_probability
    overlap = torch.minimum(target, a * without(draft, sure)).sum(-1)
    new_target = next_target((target - a * without(draft, sure)).clamp_(min=0), target)
    return overlap + (a - overlap).clamp(min=0) * at_each(new_target, sure).sum(-1)


def lorenz_anchored(target: Distributions, draft: Distributions, law: Anchored) -> Rates | None:
    """p(anchors) + alpha*(p, q', draws); with top-ups, or where nothing may be drafted, there is no formula."""
    if (law.top_up and law.drafts > 1) or law.draft_probability < 1:
        return None
    anchors = law.anchor_tokens(draft)
    of_draws = optimal_iid(target, without(draft, anchors), (anchors < 0).sum(-1))
    return at_each(target, anchors).sum(-1) + of_draws
