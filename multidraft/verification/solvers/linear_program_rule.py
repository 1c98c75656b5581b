"""The optimal rule of any drafting law, by the linear program: for small vocabularies, to compare with."""

from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.law import Law
from multidraft.verification.outcome import Outcome
from multidraft.verification.solvers import linear_program as transport
from multidraft.verification.solvers.solved import by_solving


def linear_program(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*drafting vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    law: Law,
) -> Outcome:
    """Optimal for every law, to HiGHS's tolerance; exact all the same, for the solution is trimmed to be feasible.

    >>> import torch
    >>> from multidraft.verification.laws import Iid
    >>> p, q = torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.5])
    >>> linear_program(p, q, torch.tensor([0]), Iid(1)).accept
    tensor([0.5000])
    """
    return by_solving(lambda p, network, q, n: transport.linear_program(p, network), target, draft, drafted, law)
