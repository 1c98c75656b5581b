"""The rule that needs to know nothing about the drafts: sample from the target, and accept on a match."""

import torch

from multidraft.verification.distributions import most_likely
from multidraft.verification.law import Law, at_each, is_duplicate
from multidraft.verification.outcome import Outcome
from multidraft.verification.precision import Draft, Rates, Rows, Tuples


def naive(target: Rows, draft: Draft, drafted: Tuples, law: Law) -> Outcome:
    """The emitted token is drawn from the target; it counts as accepted where it was drafted.

        accept_j = p(x_j) for the first of equal drafts,   residual = p elsewhere

    Exact for every drafting law and optimal for deterministic drafts (Multi-Candidate SD, naive sampling).
    """
    accept = at_each(target, drafted).masked_fill(is_duplicate(drafted), 0.0)
    index = drafted % (target.shape[-1] + 1)  # an empty position (-1) points behind the vocabulary
    residual = torch.nn.functional.pad(target, (0, 1)).scatter(-1, index, 0.0)[..., :-1]
    return Outcome(accept, residual, drafted)


def rate_of_iid(target: Rows, draft: Rows, law: Law) -> Rates:
    """The acceptance rate for i.i.d. drafts: a sum_i p_i (1 - (1 - q_i)^n)."""
    return law.draft_probability * (target * (1 - (1 - draft) ** law.drafts)).sum(-1)


def rate_of_top(target: Rows, draft: Rows, law: Law) -> Rates:
    """The acceptance rate for the n most likely tokens of q: a p(these tokens)."""
    return law.draft_probability * at_each(target, most_likely(draft, law.drafts)).sum(-1)


def rate_of_distinct(target: Rows, draft: Draft, law: Law) -> Rates:
    """The acceptance rate for distinct drafts: a sum_i p_i (1 - prod_j (1 - q_j,i))."""
    return law.draft_probability * (target * (1 - (1 - draft).prod(-2))).sum(-1)
