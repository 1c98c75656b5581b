"""The most tokens that any lossless use of a whole drafted tree can accept: a linear program, for tiny cases."""

from functools import cache

import numpy as np
from jaxtyping import Float

from multidraft.auditing.enumeration import Conditional, Forest
from multidraft.errors import AdviceError, optional
from multidraft_research.solvers.linear_program import EXACT

TokenTuple = tuple[int, ...]
Realised = frozenset[TokenTuple]  # the drafted prefixes below the root: with each one all that lead to it
MOST_VARIABLES = 20_000  # HiGHS takes about a minute


def realised_trees(forest: Forest) -> dict[Realised, float]:
    """The trees that can be drawn with their probabilities; drafts that differ in their order alone are one tree."""
    trees: dict[Realised, float] = {}
    for drafted, probability in zip(forest.targets.trees, forest.probability, strict=True):
        nodes = range(1, len(drafted))
        tree = frozenset(tuple(drafted.tokens[above] for above in drafted.path(node)) for node in nodes)
        trees[tree] = trees.get(tree, 0.0) + probability
    return trees


def tree_bound(trees: dict[Realised, float], conditional: Conditional, vocabulary: int) -> float:
    """The largest expected number of accepted tokens over all lossless uses of a drafted tree.

    With one variable `x[T, s]` for every realised tree `T` and every sequence `s` that can be emitted with it, which is
    an accepted prefix `u` of `T` (or nothing) and one token that was not drafted after `u`:

        maximise    sum (|s| - 1) x[T, s]
        such that   sum_s x[T, s] = Pr(T)                                          for every T
                    mass of the s that begin with (u, c)
                      = p(c | u) * mass of the s that are longer than u and begin with u     for every u and token c

    The second line is losslessness: whoever gets as far as `u` goes on as the target does. A solution may use what no
    decoder knows, the target at nodes that were not drafted, so the value is an upper bound; on chains the deferred
    walk reaches it. Raises AdviceError above MOST_VARIABLES variables, ImportError without SciPy.

    docs/theory.md, section 5.

    >>> import torch
    >>> coin = lambda tokens: torch.tensor([0.25, 0.75])
    >>> round(tree_bound({frozenset({(0,)}): 0.5, frozenset({(1,)}): 0.5}, coin, 2), 9)
    0.75
    """
    variables = [(owner, emitted) for owner, tree in enumerate(trees) for emitted in sequences(tree, vocabulary)]
    refuse(len(variables))
    return solve(variables, conditional, np.array(list(trees.values())))


def sequences(tree: Realised, vocabulary: int) -> list[TokenTuple]:
    """What can be emitted with a tree: emitting a drafted token last is never better than accepting it and going on."""
    return [(*u, c) for u in sorted({(), *tree}) for c in range(vocabulary) if (*u, c) not in tree]


def refuse(variables: int) -> None:
    """Raise when the program is too large."""
    if variables > MOST_VARIABLES:
        raise AdviceError(
            f"the linear program over whole trees would have {variables:,} variables, more than {MOST_VARIABLES:,}; "
            "take a smaller tree or 2 tokens"
        )


def solve(
    variables: list[tuple[int, TokenTuple]], conditional: Conditional, probability: Float[np.ndarray, " trees"]
) -> float:
    """The program's value, by HiGHS."""
    optimize, sparse = optional("scipy.optimize", "SciPy", "transport"), optional("scipy.sparse", "SciPy", "transport")
    rows: dict[tuple[TokenTuple, int], int] = {}
    entries = [(owner, column, 1.0) for column, (owner, _) in enumerate(variables)]
    next_token = cache(lambda u: conditional(u).tolist())
    for column, (_, emitted) in enumerate(variables):
        for length, following in enumerate(emitted):
            for c, p in enumerate(next_token(emitted[:length])):
                row = rows.setdefault((emitted[:length], c), len(probability) + len(rows))
                entries.append((row, column, (c == following) - p))
    row_of, column_of, value = zip(*entries, strict=True)
    equal = sparse.csr_matrix((value, (row_of, column_of)))
    totals = np.concatenate([probability, np.zeros(len(rows))])
    gain = [len(emitted) - 1 for _, emitted in variables]
    result = optimize.linprog(np.negative(gain), A_eq=equal, b_eq=totals, method="highs", options=EXACT)
    if not result.success:
        raise RuntimeError(f"HiGHS found no optimum: {result.message}")
    return float(-result.fun)
