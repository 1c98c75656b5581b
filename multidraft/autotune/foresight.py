"""Whether a whole run gains by drafts: the draft model reads the prompts first, and in the end few rows are left."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import NormalDist

import numpy as np
from jaxtyping import Bool

from multidraft.autotune.candidates import MARGIN
from multidraft.autotune.pair_plan import PairPlan

NOTHING = 0.005  # of a plain run's seconds
DOUBT = 0.04  # of a run's seconds, by doubling of its rows: caches are copied as rows leave, and contexts grow
SPREAD = 0.8  # of the logarithm of a row's steps, times the root of its tokens; benchmarks/prompts.jsonl, 24 to 128


def pays(
    plan: PairPlan,
    temperature: float | int,
    prompts: Sequence[int],
    budgets: Sequence[int],
    allowed: Bool[np.ndarray, " trees"],
) -> bool:
    """Whether prompts of such lengths come to so many new tokens each sooner with the trees allowed than without any.

    A run of many rows ends with its slowest one: towards its end few rows are left, and passes are no longer shared.
    The more rows there are the more must be gained: sixteen come a tenth later than predicted (docs/log.md).
    Where reading the prompts takes next to nothing it is always worth a try, since texts may be easier than expected.
    """
    trees = plan.choice(temperature)
    tokens = trees.tokens() * allowed
    reading = sum(prompts) * plan.costs.at(len(prompts)).reading
    plain = whole(lambda rows: 1 / float(trees.seconds(rows)[0]), budgets)
    if reading < NOTHING * plain:
        return True
    drafted = whole(lambda rows: float((tokens / trees.seconds(rows)).max()), eased(budgets))
    margin = MARGIN + DOUBT * math.log2(len(prompts))
    return reading + (1 + margin) * drafted < plain


def eased(budgets: Sequence[int]) -> list[float]:
    """What rows have to do in tokens of an average row: texts differ in how easily they are drafted."""
    places = (NormalDist().inv_cdf((row + 0.5) / len(budgets)) for row in range(len(budgets)))
    pairs = zip(budgets, places, strict=True)
    return [budget * math.exp(SPREAD * place / math.sqrt(max(budget, 1))) for budget, place in pairs]


def whole(speed: Callable[[int], float], work: Sequence[float | int]) -> float:
    """Seconds until all rows are done, of which so many that are left make `speed` tokens a second each.

    >>> whole(lambda rows: 1 / rows, [3, 1])  # one second a token and row: two of the first, then two of the other
    4.0
    """
    steps = enumerate(pairwise([0.0, *sorted(work)]))
    return sum((new - old) / speed(len(work) - row) for row, (old, new) in steps if new > old)
