"""The optimal transport problem itself, as a linear program: slow, for small vocabularies, to compare with."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError, optional
from multidraft_research.solvers.moved import Moved, trim, upper_bound
from multidraft_research.solvers.network import Network, merge_tuples

MOST_VARIABLES = 1_000_000  # about 1 kB each in HiGHS
EXACT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}  # HiGHS's smallest; 1e-7 if left

OUT_OF_TIME = 1  # a status of linprog


class OutOfTime(RuntimeError):
    """The linear program was not solved in the time that was allowed."""


def optimal_by_linear_program(
    target: Float[Tensor, " vocab"], tuples: Int[Tensor, "tuples drafts"], probability: Float[Tensor, " tuples"]
) -> float:
    """Largest acceptance rate that any lossless rule reaches, for drafts of any law, given all its tuples.

    The value of `linear_program`. Tuples with the same set of tokens are merged first; -1 marks an empty position.
    `target` may sum to less than one. Raises AdviceError when the program is too large, ImportError without SciPy.

    Towards Optimal Multi-Draft Speculative Decoding, eq. (9) and Lemma 1.

    >>> import torch
    >>> optimal_by_linear_program(torch.tensor([0.25, 0.75]), torch.tensor([[0], [1]]), torch.tensor([0.5, 0.5]))
    0.75
    """
    network = merge_tuples(tuples, probability)
    return float(-_solve(target.double().numpy(), network).fun) if len(network.token) else 0.0


def linear_program(target: Float[np.ndarray, " vocab"], network: Network, seconds: float | None = None) -> Moved:
    """Solve the relaxed problem: the mass moved from every drafted set to each of its tokens.

    With one variable `m[S, i]` for every token `i` of every drafted set `S`

        maximise sum m    such that    sum_S m[S, i] <= target[i],   sum_i m[S, i] <= Pr(S),   m >= 0

    `target` may sum to less than one. HiGHS keeps the limits to 1e-10 only, so the solution is trimmed to keep them to
    rounding: what is lost is acceptance, not exactness, and the optimum is proven to `error` (measured: 1e-11 for
    small programs). `max_flow` solves the same problem 20 to 100 times faster, and `lorenz` solves it for i.i.d.
    drafts without a network. Raises AdviceError above MOST_VARIABLES edges, OutOfTime after about so many `seconds`,
    ImportError without SciPy.

    Global Resolution, eq. (2), with tuples merged into sets.

    >>> from multidraft_research.solvers.network import iid_network
    >>> linear_program(np.array([0.25, 0.75]), iid_network(np.array([0.5, 0.5]), 1)).mass.tolist()
    [0.25, 0.5]
    """
    if len(network.token) == 0:
        return Moved(network, np.zeros(0), 0.0)
    result = _solve(target, network, seconds)
    inside = result.ineqlin.marginals[: len(target)] < -0.5  # the dual's vertices are 0 or -1
    return Moved(network, trim(result.x, target, network), upper_bound(target, network, inside))


def _solve(target: np.ndarray, network: Network, seconds: float | None = None) -> Any:
    """The program with one variable for each edge."""
    refuse(network)
    optimize, sparse = optional("scipy.optimize", "SciPy", "transport"), optional("scipy.sparse", "SciPy", "transport")
    ones, column = np.ones(len(network.token)), np.arange(len(network.token))
    by_token = sparse.coo_matrix((ones, (network.token, column)), (len(target), len(column)))
    by_set = sparse.coo_matrix((ones, (network.owner, column)), (len(network.probability), len(column)))
    limits = np.concatenate([target, network.probability]).clip(min=0)
    options = EXACT if seconds is None else EXACT | {"time_limit": seconds}
    result = optimize.linprog(
        -ones, A_ub=sparse.vstack([by_token, by_set]).tocsr(), b_ub=limits, method="highs", options=options
    )
    if result.status == OUT_OF_TIME:
        raise OutOfTime(f"HiGHS found no optimum in {seconds:g} seconds")
    if not result.success:
        raise RuntimeError(f"HiGHS found no optimum: {result.message}")
    return result


def refuse(network: Network) -> None:
    """Raise when the program is too large."""
    if (variables := len(network.token)) > MOST_VARIABLES:
        raise AdviceError(
            f"{len(network.probability):,} different drafted sets make a linear program of {variables:,} variables, "
            f"about {variables / 1e6:.1f} GB; at most {MOST_VARIABLES:,} are accepted (vocabulary 125 with 3 drafts, "
            "or 50 with 4). Keep the most likely tokens, solve it with max_flow, or use the closed forms of "
            "optimal_acceptance_rate"
        )
