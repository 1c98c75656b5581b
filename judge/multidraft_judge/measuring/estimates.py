"""Estimates over prompts with their intervals: the jackknife, with Student's t for few prompts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Values = np.ndarray
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571)  # Student's, for 95 % of both sides, from one degree of freedom
NORMAL_QUANTILE = 1.95996


@dataclass(frozen=True)
class Estimate:
    """A number with its interval of 95 %, which is None for fewer than two prompts."""

    value: float
    low: float | None
    high: float | None
    prompts: int

    def __str__(self) -> str:
        """The number and its interval.

        >>> str(Estimate(2.5, 2.25, 2.75, 8)), str(Estimate(2.5, None, None, 1))
        ('2.50 [2.25, 2.75]', '2.50')
        """
        return f"{self.value:.2f}" + ("" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]")


def t_quantile(freedom: int) -> float:
    """Student's quantile for 95 % of both sides: a table, then the first terms of its expansion.

    >>> round(t_quantile(1), 2), round(t_quantile(9), 2), round(t_quantile(1000), 2)
    (12.71, 2.26, 1.96)
    """
    if freedom <= len(T_QUANTILES):
        return T_QUANTILES[freedom - 1]
    z = NORMAL_QUANTILE
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def jackknife(rows: Sequence[Sequence[float]], estimator: Callable[[Values], float]) -> Estimate:
    """What an estimator says of rows, one a prompt, with an interval from leaving out one after another.

    >>> print(jackknife([[1], [2], [3]], lambda rows: float(rows.mean())))
    2.00 [-0.48, 4.48]
    """
    values, n = np.array(rows, dtype=float), len(rows)
    value = estimator(values)
    if n < 2:
        return Estimate(value, None, None, n)
    others = np.array([estimator(np.delete(values, row, axis=0)) for row in range(n)])
    error = math.sqrt((n - 1) / n * float(np.sum((others - others.mean()) ** 2)))
    reach = t_quantile(n - 1) * error
    return Estimate(value, value - reach, value + reach, n)


def pooled_ratio(pairs: Sequence[tuple[float, float]]) -> Estimate:
    """All numerators over all denominators: long answers weigh more."""
    return jackknife(pairs, lambda rows: float(rows[:, 0].sum() / rows[:, 1].sum()))


def mean_of_ratios(pairs: Sequence[tuple[float, float]]) -> Estimate:
    """The mean of prompts' ratios: every prompt weighs the same."""
    return jackknife(pairs, lambda rows: float((rows[:, 0] / rows[:, 1]).mean()))


def geometric_mean(ratios: Sequence[float]) -> Estimate:
    """The geometric mean, with the interval of its logarithm.

    >>> print(geometric_mean([1.0, 4.0, 2.0]))
    2.00 [0.36, 11.19]
    """
    logs = jackknife([[math.log(ratio)] for ratio in ratios], lambda rows: float(rows.mean()))
    low, high = (None if end is None else math.exp(end) for end in (logs.low, logs.high))
    return Estimate(math.exp(logs.value), low, high, logs.prompts)
