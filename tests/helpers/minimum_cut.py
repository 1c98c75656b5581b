"""The best token set for two drafts from different distributions, as a minimum cut: the paper's way, for comparison."""

import numpy as np
from jaxtyping import Bool, Float

from multidraft.errors import AdviceError
from multidraft.errors.missing import solver

SCALE = 2**52
MOST_TOKENS = 2000  # every pair of them is an edge: two million edges


def best_set_by_cut(
    target: Float[np.ndarray, " vocab"], first: Float[np.ndarray, " vocab"], second: Float[np.ndarray, " vocab"]
) -> Bool[np.ndarray, " vocab"]:
    """The token set `H` with the smallest `target(H) - first(H) second(H)`.

    With `w_ij = first_i second_j + first_j second_i` and `x` the indicator of `H`, it is the quadratic form

        sum_i (target_i - first_i second_i - sum_{j > i} w_ij) x_i  +  sum_{i < j} w_ij x_i (1 - x_j)

    which is what a cut costs that has `H` on the source's side. Capacities are rounded to multiples of 2^-52, so the
    set is worse than the best by less than 2^-52 for every pair of tokens: below 1e-9, for at most MOST_TOKENS tokens
    with draft mass are accepted. `best_set` has no such limit and is faster. Raises AdviceError
    above MOST_TOKENS, ImportError without OR-Tools.

    Global Resolution, Appendix D (submodular quadratic pseudo-boolean optimisation).

    >>> half = np.array([0.5, 0.5])
    >>> best_set_by_cut(np.array([0.9, 0.1]), half, half)
    array([False,  True])
    """
    tokens = np.flatnonzero((first > 0) | (second > 0))
    if len(tokens) > MOST_TOKENS:
        raise AdviceError(
            f"{len(tokens):,} tokens make a cut with an edge for every pair; at most {MOST_TOKENS:,} are accepted. Use "
            "best_set, which has no such limit"
        )
    best = np.zeros(len(target), dtype=bool)
    best[tokens[_source_side(target[tokens], first[tokens], second[tokens])]] = True
    return best


def _source_side(target: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Indices of the tokens on the source's side of the minimum cut."""
    size = len(target)
    later = [x.sum() - x.cumsum() for x in (first, second)]
    cost = target - first * second - first * later[1] - second * later[0]
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
