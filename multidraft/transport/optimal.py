"""The optimal acceptance rate of a drafting law that has its settings with it."""

from jaxtyping import Float
from torch import Tensor

from multidraft.drafting.law import Law
from multidraft.transport import optimal_acceptance_rate


def optimum(
    target: Float[Tensor, "*batch vocabulary"], draft: Float[Tensor, "*drafting vocabulary"], law: Law
) -> Float[Tensor, "*batch"]:
    """The largest acceptance rate for drafts of a law: that of a rule that solves the full problem."""
    settings = {name: getattr(law, name) for name in (*law.settings, "draft_probability")}
    return optimal_acceptance_rate(target, draft, law=law.name, drafts=law.drafts, **settings)
