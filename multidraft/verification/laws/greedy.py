"""The most likely tokens but for one draw among the others (Towards Optimal MDSD, Section 5)."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.distributions import most_likely
from multidraft.verification.law import Law, one_hot, without
from multidraft.verification.laws.anchored import optimal_anchored


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
        """The optimum of one draw beside n - 1 anchors."""
        anchors = max(drafts - 1, 0) if isinstance(drafts, int) else (drafts - 1).clamp(min=0)
        return optimal_anchored(target, draft, drafts, anchors, top_up=False)

    def conditional(
        self, draft: Float[Tensor, "*batch vocabulary"], drafted: Int[Tensor, "*batch past"]
    ) -> Float[Tensor, "*batch vocabulary"]:
        """One-hot at the next most likely token, and for the last position what is left of q."""
        j = drafted.shape[-1]
        if j == self.drafts - 1:
            return without(draft, drafted)
        return one_hot(draft, most_likely(draft, self.drafts - 1)[..., j : j + 1])
