"""The canonical decomposition: choose one drafted token by importance weights, then sample as with a single draft."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from multidraft_research.solvers.moved import Moved
from multidraft_research.solvers.network import Network


@dataclass(frozen=True)
class Canonical:
    """`weight[e]`: probability of choosing the token of edge `e` among its set; `chosen`: the law of the chosen token.

    The chosen token is then verified like a single draft drawn from `chosen`: accepted with probability `accept`.
    """

    network: Network
    weight: Float[np.ndarray, " edges"]
    chosen: Float[np.ndarray, " vocab"]
    accept: Float[np.ndarray, " vocab"]

    @property
    def value(self) -> float:
        """The acceptance rate, `sum_i min(target_i, chosen_i)`."""
        return float((self.chosen * self.accept).sum())

    def moved(self, bound: float) -> Moved:
        """The same rule as mass moved from sets to tokens."""
        mass = self.network.probability[self.network.owner] * self.weight * self.accept[self.network.token]
        return Moved(self.network, mass, bound)


def canonical(target: Float[np.ndarray, " vocab"], moved: Moved) -> Canonical:
    """The canonical decomposition of a solution of the relaxed problem.

        weight[S, i] = m[S, i] / sum_j m[S, j]      (1 / |S| for each token of a set that moves nothing)
        chosen[i]    = sum_S Pr(S) weight[S, i]
        accept[i]    = min(1, target[i] / chosen[i])

    It accepts at least as often as the solution it came from, and exactly as often when that one is optimal: choosing
    by importance weights is the relaxed problem in other words, no easier to solve. `target` may sum to less than one.

    Khisti et al., 2025; Global Resolution, Theorems 4.1 and B.1.

    >>> from multidraft_research.solvers.max_flow import max_flow
    >>> from multidraft_research.solvers.network import iid_network
    >>> canonical(p := np.array([0.25, 0.75]), max_flow(p, iid_network(np.array([0.5, 0.5]), 2))).weight.tolist()
    [1.0, 1.0, 0.0, 1.0]
    """
    network = moved.network
    total = np.bincount(network.owner, moved.mass, minlength=len(network.probability))[network.owner]
    weight = np.divide(moved.mass, total, out=1 / network.size[network.owner], where=total > 0)
    mass = weight * network.probability[network.owner]
    chosen = np.bincount(network.token, mass, minlength=len(target))
    accept = np.divide(target, chosen, out=np.ones_like(chosen), where=chosen > target)
    return Canonical(network, weight, chosen, accept)
