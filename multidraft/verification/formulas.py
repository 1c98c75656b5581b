"""Exact acceptance rates in closed form, one for each scheme that has one; None where the settings leave the formula."""

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.distributions import most_likely
from multidraft.drafting.anchored import Anchored
from multidraft.drafting.law import Law, without
from multidraft.verification.lorenz import schedule
from multidraft.verification.naive import at_each

Rates = Float[Tensor, "*batch"]
Distributions = Float[Tensor, "*batch vocabulary"]


def lorenz_iid(target: Distributions, draft: Distributions, law: Law) -> Rates:
    """alpha* = P_K + min(0, min_k F(Q_k) - P_k)."""
    count = torch.full(draft.shape[:-1], law.drafts, device=draft.device)
    return schedule(target, draft, count).optimum.to(target.dtype)


def recursive_rejection_iid(target: Distributions, draft: Distributions, law: Law) -> Rates:
    """1 - prod_j (1 - sum min(t_j, q)), where t_{j+1} = (t_j - q)_+ / (1 - sum min(t_j, q)) whatever was drawn."""
    rejected = torch.ones_like(target[..., 0])
    for _ in range(law.drafts):
        overlap = torch.minimum(target, draft)
        missed = (draft - overlap).sum(-1, keepdim=True)
        target = (target - overlap) / missed.clamp(min=torch.finfo(draft.dtype).tiny)
        rejected = rejected * missed[..., 0]
    return 1 - rejected


def naive_iid(target: Distributions, draft: Distributions, law: Law) -> Rates:
    """sum_i p_i (1 - (1 - q_i)^n)."""
    return (target * (1 - (1 - draft) ** law.drafts)).sum(-1)


def naive_top(target: Distributions, draft: Distributions, law: Law) -> Rates:
    """p(the n most likely tokens of q)."""
    return at_each(target, most_likely(draft, law.drafts)).sum(-1)


def lorenz_anchored(target: Distributions, draft: Distributions, law: Anchored) -> Rates | None:
    """p(anchors) + alpha*(p, q', draws); with top-ups there is no formula."""
    if law.top_up and law.drafts > 1:
        return None
    anchors = law.anchor_tokens(draft)
    others = without(draft, anchors)
    draws = torch.where(others.sum(-1) > 0, (anchors < 0).sum(-1), 0)
    return (at_each(target, anchors).sum(-1) + schedule(target, others, draws).optimum).to(target.dtype)
