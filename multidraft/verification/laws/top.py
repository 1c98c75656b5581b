"""The most likely tokens of the draft distribution: deterministic drafts, as most engines use them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.distributions import most_likely
from multidraft.verification.law import Law
from multidraft.verification.optima.top import optimal_top


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
        token = most_likely(draft, self.drafts)[..., drafted.shape[-1]][..., None]
        return torch.zeros_like(draft).scatter(-1, token.clamp(min=0), (token >= 0).to(draft.dtype))

    def draw_all(
        self, draft: Float[Tensor, "*batch vocabulary"], uniform: Float[Tensor, "*batch width"]
    ) -> Int[Tensor, "*batch width"]:
        """All positions at once; the uniform numbers are not needed."""
        return most_likely(draft, self.drafts)
