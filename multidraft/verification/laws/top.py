"""The most likely tokens of the draft distribution: deterministic drafts, as most engines use them."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multidraft.verification.distributions import most_likely
from multidraft.verification.law import Law, one_hot
from multidraft.verification.loops import same_shape


def optimal_top(
    target: Float[Tensor, "*batch vocab"], draft: Float[Tensor, "*batch vocab"], drafts: int | Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Acceptance rate of the `drafts` most likely tokens of `draft`: nothing is random, so it is their target mass.

    Ties go to the lower token id, and a token without draft probability is never drafted. `target` may sum to less than
    one; the result has its dtype. Raises AdviceError if the shapes differ.

    Towards Optimal Multi-Draft Speculative Decoding, section 5, without its last, random draft.

    >>> optimal_top(torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.5]), drafts=1)
    tensor(0.2500)
    """
    same_shape("target and draft", target.shape, draft.shape)
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


@dataclass(frozen=True)
class Top(Law):
    """x_1, .., x_n are the n most likely tokens, with probability one."""

    name = "top"
    optimal = staticmethod(optimal_top)
    draws_one = False

    def conditional(
        self, draft: Float[Tensor, "*batch vocabulary"], drafted: Int[Tensor, "*batch past"]
    ) -> Float[Tensor, "*batch vocabulary"]:
        """One-hot at the most likely token that is not drafted yet."""
        return one_hot(draft, most_likely(draft, self.drafts)[..., drafted.shape[-1]][..., None])

    def draw_all(
        self, draft: Float[Tensor, "*batch vocabulary"], uniform: Float[Tensor, "*batch width"]
    ) -> Int[Tensor, "*batch width"]:
        """All positions at once; the uniform numbers are not needed."""
        return most_likely(draft, self.drafts)
