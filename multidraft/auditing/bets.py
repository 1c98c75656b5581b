"""Bets that a verifier is biased: they cannot win in the long run unless it is, whatever the laws of its outcomes.

A feature gives every token a number. Averaged over the emitted token it has a known mean if the verifier is lossless,
so what a draw adds, `y`, has mean zero, and a player who stakes a fixed part of the capital on it,

    capital = product over draws of (1 + stake y),

has one unit on average at the end (never less than nothing, since stake |y| < 1). By Markov's inequality it reaches
1 / odds with probability at most `odds`: no normal approximation, no bins that are expected often enough. Where there
is a bias of d and y has variance s^2, the best stake is about d / s^2, and log capital grows by d^2 / (2 s^2) a draw.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

POWER = 2.326  # standard deviations: 99 % of a normal law lie above the mean less these
MOST = 0.9  # of the capital is lost at worst
SURE = 1e12  # the stake on what cannot happen


@dataclass(frozen=True)
class Alarm:
    """When to raise it: at p-values below `odds`, for a total variation from the target above `within`."""

    odds: float
    within: float = 0.0


@dataclass(frozen=True)
class Bets:
    """On each feature a stake that its mean is larger, and one that it is smaller than if nothing were biased."""

    stake: Float[Tensor, "sides features"]
    low: Float[Tensor, " features"]  # the smallest and the largest that `y` can be
    high: Float[Tensor, " features"]
    allowed: Float[Tensor, " features"]  # by how much its mean may be off as stated
    variance: Float[Tensor, " features"]
    draws: int
    odds: float

    @classmethod
    def place(cls, low: Tensor, high: Tensor, allowed: Tensor, variance: Tensor, draws: int, odds: float) -> "Bets":
        """The stakes that win with the smallest bias: sqrt(2 log(1 / odds) / (draws s^2)), as far as `y` allows."""
        most = MOST / (torch.stack([-low, high]) + allowed).clamp(min=1 / SURE)
        wanted = (2 * math.log(2 * len(variance) / odds) / draws / variance.clamp(min=1e-30)).sqrt()
        return cls(torch.minimum(most, wanted), low, high, allowed, variance, draws, odds)

    def p_value(self, y: Float[Tensor, "draws features"]) -> float:
        """One over the mean capital of all bets, at most one: a lossless verifier is below x with odds x at most."""
        y = torch.minimum(torch.maximum(y, self.low), self.high)
        signed = torch.stack([y, -y], 1) - self.allowed
        capital = (self.stake * signed).log1p().sum(0).flatten()
        return min(1.0, math.exp(min(math.log(len(capital)) - float(capital.logsumexp(0)), 0.0)))

    def smallest(self, shift: Float[Tensor, " features"]) -> float | None:
        """The smallest e for which means off by `e shift` are caught with 99 % probability; None if none up to one is.

        log capital has mean draws (stake d - stake^2 (s^2 + d^2) / 2) and variance draws stake^2 s^2.
        """
        spread = self.stake * self.variance.sqrt()
        wanted = math.log(self.stake.numel() / self.odds) / self.draws
        wanted = wanted + spread**2 / 2 + POWER * spread / self.draws**0.5
        off = (1 - (1 - 2 * wanted).clamp(min=0).sqrt()) / self.stake + self.allowed
        need = torch.where(wanted < 0.5, off, torch.inf) / torch.stack([shift, -shift]).clamp(min=1e-30)
        least = float(need.min())
        return least if least <= 1 else None
