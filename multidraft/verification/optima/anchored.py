"""The optimal acceptance rate when the most likely tokens are always drafted and only the others are left to chance."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.optima.iid import optimal_iid
from multidraft.verification.optima.top import is_most_likely
from multidraft.verification.optima.without_replacement import optimal_without_replacement
from multidraft.verification.precision import least


def optimal_anchored(
    target: Float[Tensor, "*batch vocab"],
    draft: Float[Tensor, "*batch vocab"],
    drafts: int | Int[Tensor, "*batch"],
    anchors: int | Int[Tensor, "*batch"],
    top_up: bool,
) -> Float[Tensor, "*batch"]:
    """Largest acceptance rate with the `anchors` most likely tokens of `draft` and `drafts - anchors` random ones.

    The random ones come from `q'`, the draft without the anchors, renormalised. An anchor is always there to be
    accepted, so with `p'` the target without the anchors

        alpha* = p(anchors) + alpha*(p', q', drafts - anchors)

    where the second optimum is that of i.i.d. draws, or with `top_up` that of draws *without replacement*: i.i.d. draws
    followed by one draw without replacement for every duplicate give a sequence of distinct tokens with exactly the
    without-replacement law, and the optimum depends on nothing but the law of the drafted set. If there is nothing to
    draw, it is zero. Ties between anchors go to the lower token id, and a
    token without draft probability is never an anchor. `target` may sum to less than one; the result has
    its dtype. Raises AdviceError if the shapes differ or there are more anchors than drafts.

    docs/theory.md, section 4; `anchors = drafts - 1` is the greedy law of Towards Optimal Multi-Draft
    Speculative Decoding, Theorem 7.

    >>> p, q = torch.tensor([0.25, 0.75, 0.0]), torch.tensor([0.5, 0.25, 0.25])
    >>> optimal_anchored(p, q, drafts=2, anchors=1, top_up=False)
    tensor(0.7500)
    """
    if target.shape != draft.shape:
        raise AdviceError(f"target {tuple(target.shape)} and draft {tuple(draft.shape)} must have the same shape")
    draws = torch.as_tensor(drafts, device=draft.device) - torch.as_tensor(anchors, device=draft.device)
    if bool((draws < 0).any()):
        raise AdviceError(f"there are more anchors ({anchors}) than drafts ({drafts}); pass anchors <= drafts")
    anchored = is_most_likely(draft, anchors) & (draft > 0)
    q = draft.masked_fill(anchored | (draft < least(draft.dtype)), 0.0)  # as the law draws
    p, q = target.double(), q.double()  # the optima below renormalise q
    optimum = optimal_without_replacement if top_up else optimal_iid
    of_draws = optimum(torch.where(anchored, 0.0, p), q, draws.expand(p.shape[:-1]))
    return (torch.where(anchored, p, 0.0).sum(-1) + of_draws).to(target.dtype)
