"""K-SEQ of SpecTr: every draft is accepted by its target's share, discounted so that none is accepted too often."""

import torch
from jaxtyping import Int
from torch import Tensor

from multidraft.verification.law import Law, at_each
from multidraft.verification.outcome import Outcome
from multidraft.verification.precision import SMALLEST_NORMAL, Rates, Rows, Tuples, next_target, ratio

BISECTIONS = 50


def best_discount(target: Rows, draft: Rows, drafts: Int[Tensor, "*batch"], draft_probability: float = 1.0) -> Rates:
    """rho*, the smallest valid discount: a (1 - (1 - beta)^n) = rho beta with beta(rho) = sum min(t / rho, q).

    It lies in [a, a n]. Found by bisection to 1e-12; the upper end of the last bracket is returned, for which the
    residual cannot be negative (SpecTr, Theorem 1; Towards Optimal MDSD, eq. 30).

    >>> best_discount(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]), torch.tensor(2))
    tensor(1.5000, dtype=torch.float64)
    """
    low = torch.full(target.shape[:-1], draft_probability, dtype=torch.float64, device=target.device)
    high = low * drafts
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        beta = torch.minimum(target / middle[..., None], draft).sum(-1)
        too_small = draft_probability * (1 - (1 - beta) ** drafts) > middle * beta
        low, high = torch.where(too_small, middle, low), torch.where(too_small, high, middle)
    return high.clamp(min=SMALLEST_NORMAL)


def k_sequential(target: Rows, draft: Rows, drafted: Tuples, law: Law) -> Outcome:
    """K-SEQ: accept draft j with b_j = min(1, t(x_j) / (rho* q(x_j))) if none before it was; then sample what remains.

        r_i = a min(q_i, t_i / rho) (1 - (1 - beta)^n) / beta,   residual = prod_j (1 - b_j) (t - r) / (1 - sum r)

    At least 1 - 1/e of the optimal acceptance rate (SpecTr, Algorithm 2 and Theorem 1).
    """
    p, q, a = target.double(), draft.double(), law.draft_probability
    count = (drafted >= 0).sum(-1) if a == 1 else torch.full_like(drafted[..., 0], law.drafts)
    rho = best_discount(p, q, count, a)[..., None]
    overlap = torch.minimum(q, p / rho)
    beta = overlap.sum(-1, keepdim=True).clamp(max=1)
    reach = a * (1 - (1 - beta) ** count[..., None])
    new_target = next_target((p - overlap * reach / beta.clamp(min=SMALLEST_NORMAL)).clamp_(min=0), p)
    b = ratio(at_each(p, drafted), rho * at_each(q, drafted)) * (drafted >= 0)
    accept = b * torch.cat([torch.ones_like(b[..., :1]), (1 - b).cumprod(-1)[..., :-1]], -1)
    residual = (1 - b).prod(-1, keepdim=True) * new_target
    return Outcome(accept.to(target.dtype), residual.to(target.dtype), drafted)


def rate_of_k_sequential(target: Rows, draft: Rows, law: Law) -> Rates:
    """The exact acceptance rate a (1 - (1 - beta)^n)."""
    p, q, a = target.double(), draft.double(), law.draft_probability
    rho = best_discount(p, q, torch.full(p.shape[:-1], law.drafts, device=p.device), a)
    beta = torch.minimum(q, p / rho[..., None]).sum(-1).clamp(max=1)
    return (a * (1 - (1 - beta) ** law.drafts)).to(target.dtype)
