"""The optimal rule where all drafts but one are sure: couple that one, then see whether a sure one comes next."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.distributions import most_likely
from multidraft.verification.law import Law, at_each, without
from multidraft.verification.outcome import Outcome
from multidraft.verification.precision import next_target
from multidraft.verification.rules.coupling import couple, remainder
from multidraft.verification.rules.naive import naive


def maximal_coupling(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    law: Law,
) -> Outcome:
    """Couple the last draft with the target by q' (q without the sure tokens), then sample the next target.

        accept_n = min(1, p(x_n) / q'(x_n)),   accept_i = (1 - accept_n) (p - q')_+(x_i) / (1 - sum min(p, q'))

    The sure tokens have q' = 0, so all of p remains for them (Towards Optimal MDSD, Theorem 7).
    """
    sure, last = drafted[..., :-1], drafted[..., -1]
    a, known = law.draft_probability, most_likely(draft, law.drafts - 1)
    b, new_target = couple(target, a * without(draft, known), last)
    otherwise = naive((1 - b)[..., None] * new_target, draft, sure, law)
    accept = torch.cat([otherwise.accept, b[..., None]], -1)
    return Outcome(accept.to(target.dtype), otherwise.residual.to(target.dtype), drafted)


def acceptance_rate(
    target: Float[Tensor, "*batch vocabulary"], draft: Float[Tensor, "*batch vocabulary"], law: Law
) -> Float[Tensor, "*batch"]:
    """The acceptance rate m + (a - m) t(sure tokens), with m = sum min(p, a q') and t = (p - a q')_+ / (1 - m)."""
    sure, a = most_likely(draft, law.drafts - 1), law.draft_probability
    random = a * without(draft, sure)
    overlap = torch.minimum(target, random).sum(-1)
    new_target = next_target(remainder(target, random), target)
    return overlap + (a - overlap).clamp(min=0) * at_each(new_target, sure).sum(-1)


def spechub(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    law: Law,
) -> Outcome:
    """SpecHub's pairs hold the top token and one other, which has the law q', so the same rule is optimal for them."""
    top = most_likely(draft, 1)
    is_last = (drafted != top) & (drafted >= 0)
    order = is_last.to(torch.uint8).argsort(dim=-1, stable=True)  # the top token first
    outcome = maximal_coupling(target, draft, drafted.gather(-1, order), law)
    return Outcome(torch.empty_like(outcome.accept).scatter_(-1, order, outcome.accept), outcome.residual, drafted)
