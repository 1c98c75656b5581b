"""The optimal acceptance rate when each draft comes from a distribution of its own: a minimum cut for two of them."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multidraft.drafting.distinct import Distinct
from multidraft.errors import AdviceError
from multidraft.transport.linear_program import optimal_by_linear_program
from multidraft.transport.optional import solver

SCALE = 2**52
MOST_TOKENS = 2000  # undecided tokens: every pair of them is an edge, two million edges


def optimal_distinct(
    target: Float[Tensor, "*batch vocab"],
    draft: Float[Tensor, "*batch drafts vocab"],
    drafts: int | Int[Tensor, "*batch"],
) -> Float[Tensor, "*batch"]:
    """Largest acceptance rate that any lossless rule reaches with draft `j` drawn from `draft[..., j, :]`.

        alpha* = 1 + min over H of  target(H) - prod_j draft_j(H)

    One draft: `sum min(target, draft)`. Two: a minimum cut (`best_set_of_two`), exact to 1e-9. More: the linear
    program over all tuples, for small vocabularies. Rows are solved one by one. `target` may sum to less than one; the
    result has its dtype. Raises AdviceError where shapes do not fit or a vocabulary is too large, ImportError without
    OR-Tools (two drafts) or SciPy (more).

    Towards Optimal Multi-Draft Speculative Decoding, eq. (8); Global Resolution, Appendices C and D.

    >>> optimal_distinct(torch.tensor([0.25, 0.75]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]), drafts=2)
    tensor(0.2500)
    """
    if draft.ndim < 2 or draft.shape[:-2] + draft.shape[-1:] != target.shape:
        raise AdviceError(
            f"target {tuple(target.shape)} and draft {tuple(draft.shape)} do not fit; distinct drafts need "
            "(..., drafts, vocabulary), one distribution a draft"
        )
    if bool((torch.as_tensor(drafts) != draft.shape[-2]).any()):
        raise AdviceError(f"draft holds {draft.shape[-2]} distributions a row; {drafts} distinct drafts need as many")
    p = target.double().cpu().reshape(-1, target.shape[-1])
    q = draft.double().cpu().reshape(-1, *draft.shape[-2:])
    q = q / q.sum(-1, keepdim=True)
    rates = [_one(*row) for row in zip(p, q, strict=True)]
    return torch.tensor(rates, dtype=torch.float64).reshape(target.shape[:-1]).to(target)


def _one(target: Float[Tensor, " vocab"], draft: Float[Tensor, "drafts vocab"]) -> float:
    """The optimum of one row."""
    if len(draft) == 0:
        return 0.0
    if len(draft) == 1:
        return float(torch.minimum(target, draft[0]).sum())
    if len(draft) == 2:
        p, first, second = target.numpy(), *draft.numpy()
        best = best_set_of_two(p, first, second)
        return float(min(1.0, 1 + p[best].sum() - first[best].sum() * second[best].sum()))
    return optimal_by_linear_program(target, *Distinct(len(draft)).tuples(draft))


def best_set_of_two(
    target: Float[np.ndarray, " vocab"], first: Float[np.ndarray, " vocab"], second: Float[np.ndarray, " vocab"]
) -> Bool[np.ndarray, " vocab"]:
    """The token set `H` with the smallest `target(H) - first(H) second(H)`.

    With `w_ij = first_i second_j + first_j second_i` and `x` the indicator of `H`, it is the quadratic form

        sum_i (target_i - first_i second_i - sum_{j > i} w_ij) x_i  +  sum_{i < j} w_ij x_i (1 - x_j)

    which is what a cut costs that has `H` on the source's side. Tokens that are decided already (`_decided`) are left
    out. Capacities are rounded to multiples of 2^-52, so the set found is worse than the best by less than 2^-52 for
    every pair of undecided tokens: below 1e-9, for at most MOST_TOKENS of them are accepted.

    Global Resolution, Appendix D (submodular quadratic pseudo-boolean optimisation).
    """
    inside, maybe = _decided(target, first, second)
    undecided = np.flatnonzero(maybe & ~inside)
    if len(undecided) > MOST_TOKENS:
        raise AdviceError(
            f"{len(undecided):,} tokens are undecided and every pair of them is an edge; at most {MOST_TOKENS:,} are "
            f"accepted. Keep the {MOST_TOKENS:,} most likely tokens of each draft distribution (top-k)"
        )
    gain = target - first * second[inside].sum() - second * first[inside].sum()
    best = inside.copy()
    best[undecided[_cut(gain[undecided], first[undecided], second[undecided])]] = True
    return best


def _decided(target: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens that some best set must hold, and those that it may.

    The cost is submodular: a token that pays when joined to what is in already always pays, and one that does not pay
    even among all that may be in never does.
    """
    inside, maybe = np.zeros(len(target), dtype=bool), np.ones(len(target), dtype=bool)
    while True:
        low = target - first * second[inside].sum() - second * first[inside].sum() - first * second
        high = target - first * second[maybe].sum() - second * first[maybe].sum() + first * second
        joins, goes = maybe & ~inside & (low < 0), maybe & ~inside & (high > 0)
        if not (joins | goes).any():
            return inside, maybe
        inside, maybe = inside | joins, maybe & ~goes


def _cut(gain: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Indices of the set with the smallest `gain(H) - first(H) second(H)`."""
    size = len(gain)
    if size == 0:
        return np.zeros(0, dtype=np.int64)
    later = [x.sum() - x.cumsum() for x in (first, second)]
    cost = gain - first * second - first * later[1] - second * later[0]
    node, (i, j) = np.arange(size), np.triu_indices(size, 1)
    tail = np.concatenate([np.where(cost < 0, size, node), i])  # nodes `size` and `size + 1`: source and sink
    head = np.concatenate([np.where(cost < 0, node, size + 1), j])
    capacity = np.concatenate([np.abs(cost), first[i] * second[j] + first[j] * second[i]])
    graph = solver("ortools.graph.python.max_flow", "OR-Tools").SimpleMaxFlow()
    graph.add_arcs_with_capacity(tail, head, np.rint(capacity * SCALE).astype(np.int64))
    if (status := graph.solve(size, size + 1)) != graph.OPTIMAL:
        raise RuntimeError(f"OR-Tools found no minimum cut: {status}")
    reached = np.asarray(graph.get_source_side_min_cut())
    return reached[reached < size]
