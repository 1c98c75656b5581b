"""The optimal rule of any drafting law, by a maximum flow: the fastest way there for laws without a closed form."""

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.law import Law
from multidraft.verification.outcome import Outcome
from multidraft.verification.solvers import max_flow as transport
from multidraft.verification.solvers.moved import Moved
from multidraft.verification.solvers.network import Network
from multidraft.verification.solvers.outer_residuals import outer_residuals
from multidraft.verification.solvers.solved import by_solving


def max_flow(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*drafting vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    law: Law,
) -> Outcome:
    """Optimal for every law to `(sets + tokens) 2^-52`, and exact: a flow never exceeds its capacities.

    >>> import torch
    >>> from multidraft.verification.laws import Iid
    >>> p, q = torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.5])
    >>> max_flow(p, q, torch.tensor([0]), Iid(1)).accept
    tensor([0.5000])
    """
    return by_solving(lambda p, network, q, n: transport.max_flow(p, network), target, draft, drafted, law)


def reduced_max_flow(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    law: Law,
) -> Outcome:
    """The same for i.i.d. drafts, on the two smaller networks of Global Resolution's Section 5.3."""

    a = law.draft_probability

    def solve(p: np.ndarray, network: Network, q: np.ndarray, n: int) -> Moved:
        return transport.reduced_max_flow(p, network, outer_residuals(p / a, q / q.sum(), n).inside)

    return by_solving(solve, target, draft, drafted, law)
