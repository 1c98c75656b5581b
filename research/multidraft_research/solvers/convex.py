"""The truncated convex problems of Global Resolution: a sum of log-sum-exp over token sets, minus a linear form."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from multidraft.errors import optional
from multidraft_research.solvers.network import sets_of_draws

Groups = list[tuple[Int[np.ndarray, "_ _"], Float[np.ndarray, " _"]]]  # sets of one size, and their coefficients


@dataclass
class Potential:
    """`sum_A c_A log(slack + sum_{i in A} e^{x_i}) - demand . x` over sets `A` of the truncated tokens.

    Its gradient is what the softmax variables `e^{x_i} / (slack + sum_{j in A} e^{x_j})` give to token `i`, minus what
    it should get. `slack` is 0 in the outer system (Theorem 6.4) and 1 in the inner one (Theorem 6.5). `groups` holds
    the sets and coefficients by size; `deviation` is the 1-norm of the gradient where it was last asked for.
    """

    groups: Groups
    demand: Float[np.ndarray, " tokens"]
    slack: int
    deviation: float = field(default=np.inf)

    def __call__(self, x: Float[np.ndarray, " tokens"]) -> tuple[float, Float[np.ndarray, " tokens"]]:
        """Value and gradient."""
        value, gradient = -float(self.demand @ x), -self.demand
        for sets, coefficient in self.groups:
            score = x[sets]
            top = score.max(1).clip(min=0 if self.slack else None)
            share = np.exp(score - top[:, None])
            total = share.sum(1) + (np.exp(-top) if self.slack else 0.0)
            value += float(coefficient @ (top + np.log(total)))
            share *= (coefficient / total)[:, None]
            gradient = gradient + np.bincount(sets.ravel(), share.ravel(), minlength=len(x))
        self.deviation = float(np.abs(gradient).sum())
        return value, gradient


def potential(
    demand: Float[np.ndarray, " tokens"],
    weight: Float[np.ndarray, " tokens"],
    drafts: int,
    slack: int,
    elsewhere: float = 0.0,
) -> Potential:
    """The potential for truncated tokens of draft mass `weight`; draws may also fall into `elsewhere` (the outer `H*`).

    Tuples with the same truncated tokens are grouped; the coefficient of a group is the probability of hitting each of
    its tokens, and otherwise nothing but `elsewhere` (Appendix K, by the sum without cancellation of `sets_of_draws`).
    """
    return Potential(list(sets_of_draws(weight, drafts, elsewhere)), demand, slack)


def minimise(function: Potential, deviation: float, iterations: int) -> tuple[Float[np.ndarray, " tokens"], float, int]:
    """L-BFGS-B from zero until the gradient's 1-norm is at most `deviation`, for at most so many iterations.

    Returns the point, the 1-norm there and the iterations used. Raises ImportError without SciPy.
    """
    start = np.zeros(len(function.demand))
    function(start)
    if function.deviation <= deviation:
        return start, function.deviation, 0

    def small_enough(_: np.ndarray) -> None:
        if function.deviation <= deviation:
            raise StopIteration

    options = {"maxiter": iterations, "gtol": 0.0, "ftol": 0.0}
    result = optional("scipy.optimize", "SciPy", "transport").minimize(
        function, start, jac=True, method="L-BFGS-B", callback=small_enough, options=options
    )
    function(result.x)
    return result.x, function.deviation, int(result.nit)
