"""Chi-square with rare tokens pooled: when to raise the alarm, and the smallest bias that would raise it."""

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

import torch
from jaxtyping import Float, Int
from torch import Tensor

POWER = 0.99
ENOUGH = 10  # expected count of a bin


def scipy_stats() -> ModuleType:
    """SciPy's distributions, or what to install."""
    try:
        from scipy import stats
    except ImportError as error:
        raise ImportError('the statistical audit needs SciPy: pip install "multidraft[transport]"') from error
    return stats


@dataclass(frozen=True)
class Bins:
    """Tokens pooled into bins, each of which is expected often enough."""

    of: Int[Tensor, " vocabulary"]  # the bin of each token, -1 where the target has no mass
    share: Float[Tensor, " bins"]  # probability of each bin

    @classmethod
    def pool(cls, target: Tensor, weight: Tensor, order: Tensor, least: tuple[float, float]) -> "Bins":
        """Go through the tokens in `order`; close a bin as soon as its target mass and its weight are large enough."""
        masses: list[float] = []
        place, mass, heavy = [-1] * len(target), 0.0, 0.0
        values, weights = target.tolist(), weight.tolist()
        for token in order.tolist():
            if values[token] <= 0:
                continue
            place[token] = len(masses)
            mass, heavy = mass + values[token], heavy + weights[token]
            if mass >= least[0] and heavy >= least[1]:
                masses.append(mass)
                mass = heavy = 0.0
        if mass > 0 and masses:  # what is left at the end goes to the last bin
            masses[-1] += mass
            place = [min(bin, len(masses) - 1) for bin in place]
        share = torch.tensor(masses or [1.0], dtype=torch.float64)
        return cls(torch.tensor(place), share / share.sum())

    def sums(self, values: Tensor) -> Float[Tensor, " bins"]:
        """The sum of the tokens' values in each bin."""
        inside = self.of >= 0
        return torch.zeros_like(self.share).index_add(0, self.of[inside], values[inside].double())


@dataclass(frozen=True)
class Alarm:
    """When to raise it: at p-values below `odds`, for a total variation from the target above `within`."""

    odds: float
    within: float = 0.0


@dataclass(frozen=True)
class ChiSquare:
    """The statistic X = sum (count - N share)^2 / (N share) of N tokens, and its law where they come from the target.

    X has mean k - 1 and variance 2 (k - 1) + (sum 1/share - k^2 - 2k + 2) / N. Its law is taken to be the scaled
    chi-square with that mean and variance, so that small expected counts do not add false alarms. Another law moves X
    by N sum (share' - share)^2 / share, the noncentrality. The largest that a stated deviation d can move it is
    N d^2 (1/share_1 + 1/share_2), with the two smallest shares.
    """

    bins: Bins
    trials: int
    alarm: Alarm

    @property
    def spread(self) -> tuple[float, float]:
        """Scale and degrees of freedom."""
        share, k = self.bins.share, len(self.bins.share)
        variance = 2 * (k - 1) + (float((1 / share).sum()) - k * k - 2 * k + 2) / self.trials
        return variance / (2 * (k - 1)), 2 * (k - 1) ** 2 / variance

    @property
    def allowed(self) -> float:
        """Noncentrality that the stated deviation may cause."""
        return self.trials * self.alarm.within**2 * float((1 / self.bins.share).topk(2).values.sum())

    def p_value(self, counts: Int[Tensor, " vocabulary"]) -> float:
        """Probability of at least so large a statistic; 0 where a token came that the target never emits."""
        stats, never = scipy_stats(), int(counts[self.bins.of < 0].sum())
        surprise = float(stats.binom.sf(never - 1, self.trials, self.alarm.within)) if never else 1.0
        if len(self.bins.share) < 2:
            return surprise
        expected, (scale, freedom) = self.trials * self.bins.share, self.spread
        statistic = float(((self.bins.sums(counts) - expected) ** 2 / expected).sum())
        return min(surprise, float(stats.ncx2.sf(statistic / scale, freedom, self.allowed / scale)))

    def power(self, law: Float[Tensor, " vocabulary"]) -> float:
        """Probability that tokens of another law raise the alarm."""
        stats, (scale, freedom) = scipy_stats(), self.spread
        moved = self.trials * float(((self.bins.sums(law) - self.bins.share) ** 2 / self.bins.share).sum())
        return float(stats.ncx2.sf(self.threshold, freedom, moved / scale))

    @cached_property
    def threshold(self) -> float:
        """The scaled statistic above which the alarm is raised."""
        scale, freedom = self.spread
        return float(scipy_stats().ncx2.isf(self.alarm.odds, freedom, self.allowed / scale))

    def smallest_leak(self, target: Tensor, towards: Tensor) -> float | None:
        """The smallest e for which (1 - e) target + e towards is caught with probability `POWER`; None if none is."""
        if len(self.bins.share) < 2 or self.power(towards) < POWER:
            return None
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            caught = self.power((1 - middle) * target + middle * towards) >= POWER
            low, high = (low, middle) if caught else (middle, high)
        return high
