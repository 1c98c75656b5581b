"""The optimal acceptance rate of the `n` most likely tokens of the draft, always drafted."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multidraft.errors import AdviceError


def optimal_top(
    target: Float[Tensor, "*batch vocab"], draft: Float[Tensor, "*batch vocab"], drafts: int | Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Acceptance rate of the `drafts` most likely tokens of `draft`: nothing is random, so it is their target mass.

    Ties go to the lower token id, and a token without draft probability is never drafted. `target` may sum to less than
    one; the result has its dtype. Raises AdviceError if
    the shapes differ.

    Towards Optimal Multi-Draft Speculative Decoding, section 5, without its last, random draft.

    >>> optimal_top(torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.5]), drafts=1)
    tensor(0.2500)
    """
    if target.shape != draft.shape:
        raise AdviceError(f"target {tuple(target.shape)} and draft {tuple(draft.shape)} must have the same shape")
    return torch.where(is_most_likely(draft, drafts) & (draft > 0), target.double(), 0.0).sum(-1).to(target.dtype)


def is_most_likely(
    draft: Float[Tensor, "*batch vocab"], count: int | Int[Tensor, "*batch"]
) -> Bool[Tensor, "*batch vocab"]:
    """Which tokens are among the `count` most likely ones of `draft`; ties go to the lower token id.

    >>> is_most_likely(torch.tensor([0.2, 0.4, 0.4]), 1)
    tensor([False,  True, False])
    """
    order = draft.argsort(dim=-1, descending=True, stable=True)
    place = torch.arange(draft.shape[-1], device=draft.device).expand(draft.shape)
    rank = torch.empty_like(order).scatter_(-1, order, place)
    return rank < torch.as_tensor(count, device=draft.device)[..., None]
