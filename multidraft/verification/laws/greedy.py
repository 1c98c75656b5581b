"""The most likely tokens but for one draw among the others (Towards Optimal MDSD, Section 5)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.distributions import most_likely
from multidraft.verification.law import Law, without
from multidraft.verification.optima.anchored import optimal_anchored


@dataclass(frozen=True)
class Greedy(Law):
    """x_1, .., x_{n-1} are the n - 1 most likely tokens; x_n is drawn from q renormalised without them."""

    name = "greedy"

    @staticmethod
    def optimal(
        target: Float[Tensor, "*batch vocabulary"],
        draft: Float[Tensor, "*batch vocabulary"],
        drafts: int | Int[Tensor, "*batch"],
    ) -> Float[Tensor, "*batch"]:
        """That of one draw beside anchors."""
        anchors = max(drafts - 1, 0) if isinstance(drafts, int) else (drafts - 1).clamp(min=0)
        return optimal_anchored(target, draft, drafts, anchors, top_up=False)

    def conditional(
        self, draft: Float[Tensor, "*batch vocabulary"], drafted: Int[Tensor, "*batch past"]
    ) -> Float[Tensor, "*batch vocabulary"]:
        """One-hot at the next most likely token, and for the last position what is left of q."""
        j = drafted.shape[-1]
        if j == self.drafts - 1:
            return without(draft, drafted)
        token = most_likely(draft, self.drafts - 1)[..., j : j + 1]
        return torch.zeros_like(draft).scatter(-1, token.clamp(min=0), (token >= 0).to(draft.dtype))
