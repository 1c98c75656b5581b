"""One token after another, each from the draft without those already drawn (Towards Optimal MDSD, eq. 6)."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.law import Law, without
from multidraft.verification.optima.without_replacement import optimal_without_replacement


@dataclass(frozen=True)
class WithoutReplacement(Law):
    """P(x_1, .., x_n) = prod_j q(x_j) / (1 - q(x_1) - .. - q(x_{j-1})); positions stay empty once q is used up."""

    name = "without_replacement"
    optimal = staticmethod(optimal_without_replacement)

    def conditional(
        self, draft: Float[Tensor, "*batch vocabulary"], drafted: Int[Tensor, "*batch past"]
    ) -> Float[Tensor, "*batch vocabulary"]:
        """q renormalised without the tokens drawn so far."""
        return without(draft, drafted)
