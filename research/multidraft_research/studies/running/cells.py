"""The numbers of a study: sums prompt by prompt, and from them ratios and differences with errors over prompts."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from multidraft.io.journal import Record


class Cell(NamedTuple):
    """What one prompt adds to an entry of a table: the entry is the sum of totals over the sum of weights.

    An acceptance rate is a total over positions, block efficiency is tokens over target passes, and a speed-up the
    seconds of plain decoding over those with drafts. A difference of two entries of one weight is an entry as well,
    whose error is that of paired differences.
    """

    panel: str
    row: str
    column: str | float
    total: float
    weight: float


Place = tuple[str, str, str | float]  # panel, row, column
Sums = dict[str, tuple[float, float]]  # total and weight of every prompt


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error, which one prompt alone does not give."""

    value: float
    standard_error: float | None
    prompts: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """What holds the true value about 95 times in 100; none from fewer than three prompts."""
        if self.standard_error is None or self.prompts < 3:
            return None
        margin = student(self.prompts - 1) * self.standard_error
        return self.value - margin, self.value + margin


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, by three terms of its expansion about the normal one.

    >>> [round(student(freedom), 2) for freedom in (2, 5, 30)]  # 4.30, 2.57 and 2.04 in tables
    [4.17, 2.57, 2.04]
    """
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def sums(records: Iterable[Record]) -> dict[Place, Sums]:
    """What every prompt adds to every entry, in the order in which entries first came; a prompt may come again."""
    sums_by_place: dict[Place, Sums] = {}
    for record in records:
        for panel, row, column, total, weight in record["cells"]:
            sums_of_place = sums_by_place.setdefault((panel, row, column), {})
            before = sums_of_place.get(record["id"], (0.0, 0.0))
            sums_of_place[record["id"]] = before[0] + total, before[1] + weight
    return sums_by_place


def ratio(sums_of_place: Sums) -> Estimate:
    """Sum of totals over sum of weights.

    >>> ratio({"a": (1.0, 2.0), "b": (3.0, 4.0)})
    Estimate(value=0.6666666666666666, standard_error=0.11111111111111112, prompts=2)
    """
    return Estimate(value_of(sums_of_place), error_of(list(influences(sums_of_place).values())), len(sums_of_place))


def difference(first: Sums, second: Sums) -> Estimate:
    """How far the first entry is above the second, over the same prompts: what both have in common cancels out."""
    theirs = influences(second)
    paired = [influence - theirs[prompt] for prompt, influence in influences(first).items()]
    return Estimate(value_of(first) - value_of(second), error_of(paired), len(first))


def value_of(sums_of_place: Sums) -> float:
    """The ratio."""
    weight = math.fsum(weight for _, weight in sums_of_place.values())
    return math.fsum(total for total, _ in sums_of_place.values()) / weight if weight else math.nan


def influences(sums_of_place: Sums) -> dict[str, float]:
    """What each prompt moves the ratio by, to first order; they sum to zero."""
    value, weight = value_of(sums_of_place), math.fsum(weight for _, weight in sums_of_place.values())
    return {
        prompt: (total - value * its) / weight if weight else math.nan for prompt, (total, its) in sums_of_place.items()
    }


def error_of(moves: list[float]) -> float | None:
    """The standard error of a sum of independent influences."""
    count = len(moves)
    return math.sqrt(math.fsum(move**2 for move in moves) * count / (count - 1)) if count > 1 else None
