"""What is known of acceptance rates without solving anything: SpecTr's bounds and K-SEQ's guarantee."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.laws.iid import Iid

MOST_CELLS = 1 << 26  # token sets times tuples


def k_sequential_guarantee(drafts: int) -> float:
    """Share of the optimal acceptance rate that K-SEQ is certain to reach: `1 - (1 - 1/n)^n`, at least `1 - 1/e`.

    SpecTr, Theorem 1.

    >>> k_sequential_guarantee(2)
    0.75
    """
    return 1 - (1 - 1 / drafts) ** drafts


def marginal_bound(
    target: Float[Tensor, "*batch vocab"], draft: Float[Tensor, "*batch vocab"], drafts: int
) -> Float[Tensor, "*batch"]:
    """An upper bound for i.i.d. drafts that takes one pass: `sum_i min(target_i, 1 - (1 - draft_i)^n)`.

    A token is accepted no more often than it is drafted. It is `information_bounds` with all tokens in its set.

    SpecTr, Lemma 3.

    >>> marginal_bound(torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.5]), 1)
    tensor(0.7500)
    """
    return torch.minimum(target, 1 - (1 - draft) ** drafts).sum(-1)


def k_sequential_floor(
    target: Float[Tensor, "*batch vocab"], draft: Float[Tensor, "*batch vocab"], drafts: int
) -> Float[Tensor, "*batch"]:
    """A lower bound for K-SEQ (and so for the optimum) in one pass: `(1 - (1 - 1/n)^n) sum_i min(target_i, n draft_i)`.

    SpecTr, eq. (11).
    """
    return k_sequential_guarantee(drafts) * torch.minimum(target, drafts * draft).sum(-1)


def information_bounds(
    target: Float[Tensor, " vocab"], draft: Float[Tensor, " vocab"], drafts: int
) -> tuple[float, float]:
    """SpecTr's lower and upper bound of the optimal acceptance rate of i.i.d. drafts, for one small vocabulary.

        upper = min over token sets A of  sum_{i in A} min(target_i, 1 - (1 - draft_i)^n)
                                        + sum over tuples x of  min(Pr(x), target(x without A))
        lower = (1 - (1 - 1/n)^n) upper

    `upper` is taken over ordered tuples, as printed (over token sets it would be a little tighter). It takes every
    token set times every tuple: for plots and tests. `optimal_iid` is the optimum itself, in O(V log V). Raises
    AdviceError above MOST_CELLS pairs of a set and a tuple.

    SpecTr, Lemma 3, eq. (9).

    >>> information_bounds(torch.tensor([0.25, 0.75]), torch.tensor([1.0, 0.0]), 2)
    (0.1875, 0.25)
    """
    if 2 ** len(target) * int((draft > 0).sum()) ** drafts > MOST_CELLS:
        raise AdviceError(
            f"{len(target)} tokens with {drafts} drafts are too many for every token set times every tuple; use "
            "marginal_bound and k_sequential_floor, or optimal_iid, which is exact"
        )
    p, q = target.double(), draft.double()
    tuples, probability = Iid(drafts).tuples(q)
    contains = torch.zeros(len(tuples), len(p), dtype=torch.float64).scatter_(1, tuples, 1.0)
    masks = (np.arange(2 ** len(p))[:, None] >> np.arange(len(p))) & 1
    chosen = torch.from_numpy(masks.astype(np.float64))
    by_token = chosen @ torch.minimum(p, 1 - (1 - q) ** drafts)
    by_tuple = [torch.minimum(probability, contains @ (p * (1 - row))).sum() for row in chosen]
    upper = float((by_token + torch.stack(by_tuple)).min())
    return k_sequential_guarantee(drafts) * upper, upper
