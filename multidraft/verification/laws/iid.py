"""Independent draws from the draft distribution, with replacement (SpecTr; SpecInfer)."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.distributions import pick
from multidraft.verification.law import Law
from multidraft.verification.optima.iid import optimal_iid


@dataclass(frozen=True)
class Iid(Law):
    """P(x_1, .., x_n) = prod_j q(x_j). With one draft this is ordinary speculative sampling."""

    name = "iid"
    optimal = staticmethod(optimal_iid)
    repeats = True

    def conditional(
        self, draft: Float[Tensor, "*batch vocabulary"], drafted: Int[Tensor, "*batch past"]
    ) -> Float[Tensor, "*batch vocabulary"]:
        """q, whatever came before."""
        return draft

    def draw_all(
        self, draft: Float[Tensor, "*batch vocabulary"], uniform: Float[Tensor, "*batch width"]
    ) -> Int[Tensor, "*batch width"]:
        """All positions from one cumulative sum."""
        return pick(draft, uniform)
