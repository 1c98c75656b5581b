"""The optimal transport problem itself, as a linear program: slow, for small vocabularies, to compare with."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError

MOST_VARIABLES = 1_000_000  # about 1 kB each in HiGHS


def optimal_by_linear_program(
    target: Float[Tensor, " vocab"], tuples: Int[Tensor, "tuples drafts"], probability: Float[Tensor, " tuples"]
) -> float:
    """Largest acceptance rate that any lossless rule reaches, for drafts of any law, given all its tuples.

    With one variable `S[i, t]` for every token `i` of every drafted tuple `t`

        maximise sum S    such that    sum_t S[i, t] <= target[i],   sum_i S[i, t] <= probability[t],   S >= 0

    A rule sees no more in a tuple than the set of its tokens, so tuples with the same set are merged first. -1 marks an
    empty position. `target` may sum to less than one. Raises AdviceError when the program is too large, ImportError
    without SciPy.

    Towards Optimal Multi-Draft Speculative Decoding, eq. (9) and Lemma 1.

    >>> optimal_by_linear_program(torch.tensor([0.25, 0.75]), torch.tensor([[0], [1]]), torch.tensor([0.5, 0.5]))
    0.75
    """
    sets, mass = _merge(tuples, probability.double())
    token, owner = sets[sets >= 0], (sets >= 0).nonzero()[:, 0]
    if len(token) > MOST_VARIABLES:
        raise AdviceError(
            f"{len(sets):,} different drafted sets make a linear program of {len(token):,} variables, about "
            f"{len(token) / 1e6:.1f} GB; at most {MOST_VARIABLES:,} are accepted (vocabulary 125 with 3 drafts, "
            "or 50 with 4). Keep the most likely tokens, or use the closed forms of optimal_acceptance_rate"
        )
    return _solve(target.double(), mass, token, owner) if len(token) else 0.0


def _merge(tuples: Tensor, probability: Tensor) -> tuple[Tensor, Tensor]:
    """The different token sets among the tuples, as rows padded with -1, and the probability of each."""
    rows = tuples.sort(-1).values
    repeated = torch.zeros_like(rows, dtype=torch.bool)
    repeated[:, 1:] = rows[:, 1:] == rows[:, :-1]
    rows = rows.masked_fill(repeated, -1).sort(-1).values
    sets, index = torch.unique(rows, dim=0, return_inverse=True)
    return sets, torch.zeros(len(sets), dtype=probability.dtype).index_add(0, index, probability)


def _solve(target: Tensor, mass: Tensor, token: Tensor, owner: Tensor) -> float:
    """The program with one variable for each pair of a `token` and the set (`owner`) that it is part of."""
    try:
        from scipy.optimize import linprog
        from scipy.sparse import coo_matrix, vstack
    except ImportError as error:
        raise ImportError('the linear program needs SciPy: pip install "multidraft[transport]"') from error
    ones, column = torch.ones(len(token)).numpy(), torch.arange(len(token)).numpy()
    by_token = coo_matrix((ones, (token.numpy(), column)), (len(target), len(token)))
    by_set = coo_matrix((ones, (owner.numpy(), column)), (len(mass), len(token)))
    limits = torch.cat([target, mass]).clamp(min=0).numpy()
    exact = {
        "primal_feasibility_tolerance": 1e-10,
        "dual_feasibility_tolerance": 1e-10,
    }  # HiGHS's smallest; 1e-7 if left
    result = linprog(-ones, A_ub=vstack([by_token, by_set]).tocsr(), b_ub=limits, method="highs", options=exact)
    if not result.success:
        raise RuntimeError(f"HiGHS found no optimum: {result.message}")
    return float(-result.fun)
