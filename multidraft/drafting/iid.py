"""Independent draws from the draft distribution, with replacement (SpecTr; SpecInfer)."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from multidraft.drafting.law import Law
from multidraft.numerics.distributions import pick


@dataclass(frozen=True)
class Iid(Law):
    """P(x_1, .., x_n) = prod_j q(x_j). With one draft this is ordinary speculative sampling."""

    name = "iid"
    distinct = False

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
