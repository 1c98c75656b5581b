"""Which tokens the best set holds, and what remains of the others' target: the first two steps of Global Resolution."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from multidraft.verification.precision import MIN_DRAFT_PROBABILITY


@dataclass(frozen=True)
class OuterSplit:
    """The best set `H*` (`inside`), the outer residuals (zero inside), and the optimal acceptance rate."""

    inside: Bool[np.ndarray, " vocab"]
    residual: Float[np.ndarray, " vocab"]
    optimum: float


def outer_residuals(target: Float[np.ndarray, " vocab"], draft: Float[np.ndarray, " vocab"], drafts: int) -> OuterSplit:
    """`H*` and a feasible residual for every token outside it, for `drafts` i.i.d. draws.

    With `psi(H) = target(H) - draft(H)^n`, `H*` its minimiser and the tokens outside it in order of falling p/q,

        residual_k = min over H that contain all but the first k-1 tokens of psi(H)  -  the same for the first k

    By Lemma 6.3 each minimum is over prefixes of one sorted list, so all of them are one cumulative minimum,
    `M_k = min(0, min_{j <= k} 1 - (1 - Q_j)^n - P_j)` with prefix sums `P`, `Q`: `residual_k = M_{k-1} - M_k`, in
    O(V log V). (All residuals sit on the resets of docs/theory.md: one vertex of the polymatroid, where the
    Lorenz rule takes an inner point.) A token without draft mass keeps all its target. `target` may sum to less than
    one, `draft` sums to one.

    Global Resolution, Theorem 6.2 and Lemma 6.3.

    >>> outer_residuals(np.array([0.75, 0.25]), np.array([0.5, 0.5]), 1)
    OuterSplit(inside=array([False,  True]), residual=array([0.25, 0.  ]), optimum=0.75)
    """
    support = np.flatnonzero(draft > MIN_DRAFT_PROBABILITY)
    order = support[np.argsort(-target[support] / draft[support], kind="stable")]
    P, Q = target[order].cumsum(), draft[order].cumsum().clip(max=1)
    lowest = np.minimum.accumulate(np.concatenate([[0.0], 1 - (1 - Q) ** drafts - P]))
    inside, residual = np.zeros(len(target), dtype=bool), np.where(draft > MIN_DRAFT_PROBABILITY, 0.0, target)
    inside[order[np.argmin(lowest) :]] = True  # the first minimum: all that comes after it
    residual[order] = np.minimum(lowest[:-1] - lowest[1:], target[order])
    return OuterSplit(inside, residual, float(P[-1] + lowest[-1]) if len(order) else 0.0)
