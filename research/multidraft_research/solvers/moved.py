"""What a solver of the full problem returns: the mass moved from every drafted set to each of its tokens."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from multidraft_research.solvers.network import Network


@dataclass(frozen=True)
class Moved:
    """A feasible point of the relaxed problem: `mass[e]` goes from the set to the token of edge `e`.

        maximise sum m    such that    sum_S m[S, i] <= target[i],   sum_i m[S, i] <= Pr(S),   m >= 0

    Every feasible point is a lossless rule (accept `i` with probability `m[S, i] / Pr(S)`), whatever its `value`.
    `bound` is a number that no rule exceeds, so `error` is proven, not estimated.
    """

    network: Network
    mass: Float[np.ndarray, " edges"]
    bound: float

    @property
    def value(self) -> float:
        """The acceptance rate."""
        return float(self.mass.sum())

    @property
    def error(self) -> float:
        """How far at most the acceptance rate is from the optimum."""
        return max(self.bound - self.value, 0.0)

    def token_mass(self, vocabulary: int) -> Float[np.ndarray, " vocab"]:
        """The mass that each token gets: `r` of docs/theory.md."""
        return np.bincount(self.network.token, self.mass, minlength=vocabulary)


def upper_bound(target: Float[np.ndarray, " vocab"], network: Network, inside: Bool[np.ndarray, " vocab"]) -> float:
    """`target(H) + Pr(some draft is outside H)`: no rule accepts more often, whatever the token set `H = inside`.

    Towards Optimal Multi-Draft Speculative Decoding, eq. (8).
    """
    return float(target[inside].sum() + network.probability[network.leaves(inside)].sum())


def trim(
    mass: Float[np.ndarray, " edges"], target: Float[np.ndarray, " vocab"], network: Network
) -> Float[np.ndarray, " edges"]:
    """The nearest feasible point below: what a solver's tolerance let through is scaled away, so no rule is biased."""
    mass = mass.clip(min=0)
    moved_mass = np.bincount(network.owner, mass, minlength=len(network.probability))
    mass = mass * _at_most(network.probability, moved_mass)[network.owner]
    taken = np.bincount(network.token, mass, minlength=len(target))
    return mass * _at_most(target, taken)[network.token]


def _at_most(limit: np.ndarray, total: np.ndarray) -> np.ndarray:
    """The factor that brings each total down to its limit."""
    return np.divide(limit, total, out=np.ones_like(total), where=total > limit)
