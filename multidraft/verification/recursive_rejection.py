"""Try the drafts one after another, each against what is left of the target (SpecInfer; Multi-Candidate SD)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.drafting.law import Law, at
from multidraft.verification.outcome import Outcome


def couple(
    target: Float[Tensor, "*batch vocabulary"], law: Float[Tensor, "*batch vocabulary"], token: Int[Tensor, "*batch"]
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch vocabulary"]]:
    """Single-draft coupling: the probability of accepting `token`, drawn from `law`, and the target left if it is not.

        b = min(1, t(x) / law(x)),   t <- (t - law)_+ / (1 - sum min(t, law))

    An empty position (token -1) accepts nothing and leaves the target as it is (Towards Optimal MDSD, eq. 5).
    """
    overlap = torch.minimum(target, law)
    over, missed = target - overlap, (law - overlap).sum(-1, keepdim=True)  # sums of positive terms: no cancellation
    share = torch.maximum(missed, over.sum(-1, keepdim=True))  # rounding must not let what is left exceed one
    left = over / share.clamp(min=torch.finfo(law.dtype).tiny)
    ratio = at(target, token) / at(law, token).clamp(min=torch.finfo(law.dtype).tiny)
    return ratio.clamp(max=1), torch.where((token >= 0)[..., None], left, target)


def recursive_rejection(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    law: Law,
) -> Outcome:
    """Each draft is coupled with what is left of the target, by the law it was drawn from given the earlier drafts.

        accept_j = b_j prod_{i<j} (1 - b_i),   residual = t_n prod_j (1 - b_j)

    The law of draft j is `draft` itself when drawn i.i.d., and `draft` renormalised without the earlier tokens when
    drawn without replacement (Multi-Candidate SD, Algorithms 1 and 2). Not optimal with more than one draft.
    """
    alive, accept = torch.ones_like(target[..., 0]), []
    for j in range(drafted.shape[-1]):
        b, target = couple(target, law.conditional(draft, drafted[..., :j]), drafted[..., j])
        accept.append(alive * b)
        alive = alive * (1 - b)
    return Outcome(torch.stack(accept, -1), alive[..., None] * target, drafted)
