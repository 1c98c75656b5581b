"""A solver of the full problem as a rule: row by row, from mass moved to the law of the emitted token. Slow by nature."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.drafting.law import Law, is_duplicate
from multidraft.transport.moved import Moved
from multidraft.transport.network import Network, network_of
from multidraft.verification.outcome import Outcome

Solver = Callable[[np.ndarray, Network], Moved]


def by_solving(
    solve: Solver,
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*drafting vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    law: Law,
) -> Outcome:
    """The rule of a feasible point `m` of the relaxed problem, exact whether or not `m` is optimal.

        accept[i | S] = m[S, i] / Pr(S)  (at the first position of token i),   residual = (1 - sum accept) R / (1 - alpha)

    with `R = target - r`, `r_i = sum_S m[S, i]` and `alpha = sum r`. Averaged over the sets, accept gives `r` and the
    residual `(1 - alpha) R / (1 - alpha)`. Every different pair of distributions in the batch is solved once.
    """
    p = target.detach().double().cpu().reshape(-1, target.shape[-1])
    q = draft.detach().double().cpu().reshape(len(p), -1, draft.shape[-1])
    q = q.reshape(len(p), *draft.shape[target.ndim - 1 :])  # (drafts, vocabulary) where each draft has its own
    x = drafted.cpu().reshape(len(p), drafted.shape[-1])
    accept, residual = torch.zeros(x.shape, dtype=torch.float64), torch.zeros_like(p)
    known: dict[tuple[bytes, bytes, int], tuple[Moved, np.ndarray]] = {}
    first = (x >= 0) & ~is_duplicate(x)
    for row in range(len(p)):
        count = int((x[row] >= 0).sum()) if law.draft_probability == 1 else law.drafts
        if count == 0:  # nothing was to be drafted here: emit from the target
            residual[row] = p[row]
            continue
        key = (p[row].numpy().tobytes(), q[row].numpy().tobytes(), count)
        if key not in known:
            known[key] = _solution(solve, p[row].numpy(), network_of(law, q[row], count))
        moved, left = known[key]
        accept[row, first[row]] = torch.from_numpy(accepted(moved, x[row, first[row]].numpy()))
        residual[row] = (1 - accept[row].sum()).clamp(min=0) * torch.from_numpy(left)
    return Outcome(accept.reshape(drafted.shape).to(target), residual.reshape(target.shape).to(target), drafted)


def _solution(solve: Solver, target: np.ndarray, network: Network) -> tuple[Moved, np.ndarray]:
    """The mass moved, and what is left of the target for one unit of rejection."""
    moved = solve(target, network)
    return moved, leftover(target, (target - moved.received(len(target))).clip(min=0))


def accepted(moved: Moved, tokens: Int[np.ndarray, " some"]) -> Float[np.ndarray, " some"]:
    """Probability of emitting each of the distinct drafted tokens, in the order given."""
    network = moved.network
    found = network.find(tokens)
    edges = slice(network.start[found], network.start[found + 1])
    if network.probability[found] <= 0:  # so unlikely that its probability is no number: never drafted
        return np.zeros(len(tokens))
    share = moved.mass[edges] / max(network.probability[found], moved.mass[edges].sum())
    return share[np.searchsorted(network.token[edges], tokens)]


def leftover(
    target: Float[np.ndarray, " vocabulary"], unclaimed: Float[np.ndarray, " vocabulary"], noise: float = 1e-15
) -> Float[np.ndarray, " vocabulary"]:
    """`R / (1 - alpha)`, where `1 - alpha` is what the target lacks to one plus the sum of `R = unclaimed`.

    A target that lacks no more than `noise` counts as one; if it is all claimed, only rounding is ever rejected, and
    that is emitted from the target.
    """
    missing = 1 - target.sum()
    rejected = unclaimed.sum() + (missing if missing > noise else 0.0)
    if rejected > 0:
        return unclaimed / rejected
    return target / max(target.sum(), np.finfo(float).tiny)
