"""The optimal rule of any drafting law, by a maximum flow: the fastest way there for laws without a closed form."""

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.drafting.law import Law
from multidraft.transport import max_flow as transport
from multidraft.transport.moved import Moved
from multidraft.transport.network import Network
from multidraft.transport.outer_residuals import outer_residuals
from multidraft.verification.outcome import Outcome
from multidraft.verification.solved import by_solving


def max_flow(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*drafting vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    law: Law,
) -> Outcome:
    """Optimal for every law to `(sets + tokens) 2^-52`, and exact: a flow never exceeds its capacities.

    >>> import torch
    >>> from multidraft.drafting import Iid
    >>> p, q = torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.5])
    >>> max_flow(p, q, torch.tensor([0]), Iid(1)).accept
    tensor([0.5000])
    """
    return by_solving(transport.max_flow, target, draft, drafted, law)


def reduced_max_flow(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    law: Law,
) -> Outcome:
    """The same for i.i.d. drafts, on the two smaller networks of Global Resolution's Section 5.3."""

    def solve(p: np.ndarray, network: Network) -> Moved:
        return transport.reduced_max_flow(p, network, _best_set(p, network, law))

    return by_solving(solve, target, draft, drafted, law)


def _best_set(target: np.ndarray, network: Network, law: Law) -> np.ndarray:
    """H*, with the draft distribution read off the network: a set of one token has probability `a q^n`."""
    alone, a = np.flatnonzero(network.size == 1), law.draft_probability
    draft = np.zeros(len(target))
    draft[network.token[network.start[alone]]] = (network.probability[alone] / a) ** (1 / law.drafts)
    return outer_residuals(target / a, draft, law.drafts).inside
