"""Evidence against a sampler: bets on every token, against the law that it has been given for that token.

A law is over *bins*: the listed tokens, likeliest first, and at last "another", which stands for all other tokens.
Before a token is seen, a score gives every bin a number s, whose mean under the law p is m. The bet

    f(t) = (1 + lambda (s(t) - m)) / (1 + e |lambda| max |s - m|),       |lambda| <= 1 / (2 max |s - m|),

has a mean of at most 1 if the token t has law p up to a factor in [1 - e, 1 + e], which rounding explains. So the
capital, the product of all bets, is a non-negative supermartingale. It exceeds 1 / alpha with probability alpha at
most, whenever one stops (Ville's inequality). A mixture of capitals is such a process too: over a grid of lambda of
both signs, so that nothing has to be tuned; over scores, some of them learnt from the tokens before (`learning`); and
over *strata*, parts of the tokens.

A token's stratum must leave its law p. "First of its chunk" and "later in its chunk" do: a chunk ends by what came
before. "Last of its chunk" does not: a rejected draft ends a chunk, so the token itself decides. Bets on it convict
servers that are innocent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from multidraft_judge.evidence.learning import LEARNED_CELLS, Learner, cells_of
from multidraft_judge.evidence.scores import FIXED_NAMES, Seen, fixed_scores

if TYPE_CHECKING:
    from jaxtyping import Float

Array = np.ndarray
SCORES = FIXED_NAMES + LEARNED_CELLS  # what is bet on
EVERY = "every token"
FIRST, LATER = "first of its chunk", "later in its chunk"
ALONE, BESIDE, BESIDE_CANCELLED, REUSED = "alone", "beside others", "beside cancelled ones", "prompt asked before"
STRATA = (EVERY, FIRST, LATER, ALONE, BESIDE, BESIDE_CANCELLED, REUSED)
EVERY_WEIGHT = 0.5  # of the starting capital is bet on every token, and the rest in equal parts on the other strata
SIZES = 2.0 ** -np.arange(0, 8)  # of lambda, as far as the bound allows
LAMBDAS = np.concatenate([SIZES, -SIZES])
NORMAL_95 = 1.645  # 95 % of a normal law lie above its mean less so many standard deviations
LARGEST_BIAS = 0.25  # that is stated: who could hide a larger one is not acquitted
OPEN_PROBABILITY = 0.999  # a likeliest token above it leaves nothing open


class Bets(NamedTuple):
    """The bets of every score and every lambda on one token."""

    lambdas: Float[Array, "scores lambdas"]  # as far as the bound allows
    gains: Float[Array, "scores lambdas bins"]  # lambda (s - m), of every bin
    allowance: Float[Array, "scores lambdas"]  # what rounding may explain: e |lambda| max |s - m|

    @classmethod
    def on(cls, law: Float[Array, " bins"], values: Float[Array, "scores bins"], rounding: float) -> Bets:
        """The bets on a token before it is seen, with the numbers that scores give to the bins."""
        centred = values - (values @ law)[:, None]
        widest = np.abs(centred).max(-1, keepdims=True)
        bound = 1 / (2 * widest.clip(min=1e-9))
        lambdas = LAMBDAS.clip(-bound, bound)
        return cls(lambdas, lambdas[..., None] * centred[:, None], rounding * np.abs(lambdas) * widest)

    def factors(self) -> Float[Array, "scores lambdas bins"]:
        """What each bet multiplies its capital by, if the token falls into a bin."""
        return (1 + self.gains) / (1 + self.allowance)[..., None]


class Evidence:
    """The capital of all bets so far, in logarithms; `strata` are the parts of the tokens that are bet on by name."""

    def __init__(self, rounding: float, strata: Sequence[str] = STRATA):
        self.rounding, self.strata = rounding, strata
        self.log_capital = np.zeros((len(strata), len(SCORES), len(LAMBDAS)))
        self.log_weights = np.log(shares_of(strata))[:, None, None] - math.log(len(SCORES) * len(LAMBDAS))
        self.learner = Learner()
        self.curve = [0.0]  # the logarithm of the mixed capital after every token
        self.highest = 0.0  # the largest that there was
        # Sums of |lambda| as far as there is room for a bias, of a bet's variance, of allowances
        self.moments = np.zeros((3, len(SCORES), len(LAMBDAS)))
        self.entropy = 0.0  # of all laws that were bet on, in nats
        self.open_tokens = 0  # whose laws were uncertain

    def add(self, seen: Seen) -> None:
        """Bet on a token, and pay out."""
        cells = cells_of(seen)
        values = np.concatenate([fixed_scores(seen), self.learner.scores(cells)])
        bets = Bets.on(seen.law, values, self.rounding)
        in_stratum = [name == EVERY or name in seen.strata for name in self.strata]
        self.log_capital[in_stratum] += np.log(bets.factors()[..., seen.bin])
        self.curve.append(log_sum(self.log_weights + self.log_capital))
        self.highest = max(self.highest, self.curve[-1])
        stakes = np.abs(bets.lambdas) * room(seen.law, values)[:, None]
        self.moments += [stakes, bets.gains**2 @ seen.law, np.log1p(bets.allowance)]
        positive = seen.law[seen.law > 0]
        self.entropy -= float(positive @ np.log(positive))
        self.open_tokens += bool(seen.law.max() < OPEN_PROBABILITY)
        self.learner.learn(seen, cells)

    @property
    def tokens(self) -> int:
        """How many tokens were bet on."""
        return len(self.curve) - 1

    def convicts(self, alpha: float) -> bool:
        """Whether the capital has exceeded 1 / alpha."""
        return self.highest > -math.log(alpha)

    def tokens_until(self, alpha: float) -> int | None:
        """After how many tokens the capital first exceeded 1 / alpha; None if it never did."""
        return next((count for count, value in enumerate(self.curve) if value > -math.log(alpha)), None)

    def by_bet(self) -> dict[tuple[str, str], float]:
        """The logarithm of the capital of each stratum and score, mixed over lambda."""
        return {
            (stratum, score): log_sum(capital) - math.log(len(LAMBDAS))
            for stratum, capitals in zip(self.strata, self.log_capital, strict=True)
            for score, capital in zip(SCORES, capitals, strict=True)
        }

    def smallest_bias(self, alpha: float) -> dict[str, float | None]:
        """For each fixed score, the shift of its mean that these tokens would have shown at `alpha` with 95 %; or None.

        For scores of 0 and 1 it is the total variation at places with room for `LARGEST_BIAS`, and less in proportion
        to the room at others: where a law is certain, there is no bias and no evidence. A bet on a mean that is off by
        d has, in its logarithm, mean d sum |lambda| - variance / 2 - allowance, and variance sum of lambda^2 Var(s).
        """
        stakes, variance, allowance = self.moments
        weight = EVERY_WEIGHT / len(SCORES) / len(LAMBDAS)
        needed = -math.log(alpha * weight) + variance / 2 + allowance + NORMAL_95 * np.sqrt(variance)
        shifts = np.where(variance > 0, needed / stakes.clip(min=1e-300), np.inf).min(-1)
        possible = [LARGEST_BIAS, math.inf, LARGEST_BIAS, LARGEST_BIAS]
        return {n: float(d) if d < most else None for n, d, most in zip(FIXED_NAMES, shifts, possible, strict=False)}

    def can_acquit(self, alpha: float) -> bool:
        """Whether so much law was bet on that a bias of `LARGEST_BIAS` would have been found with 95 %."""
        return self.smallest_bias(alpha)[FIXED_NAMES[0]] is not None


def room(law: Float[Array, " bins"], values: Float[Array, "scores bins"]) -> Float[Array, " scores"]:
    """How much each score's mean may rise, as a part of `LARGEST_BIAS`, 1 at most."""
    return ((values.max(-1) - values @ law) / LARGEST_BIAS).clip(0.0, 1.0)


def shares_of(strata: Sequence[str]) -> Float[Array, " strata"]:
    """The part of the starting capital that is bet on each stratum."""
    parts = 1 if EVERY not in strata else len(strata) - 1
    shares = np.array([EVERY_WEIGHT if name == EVERY else (1 - EVERY_WEIGHT) / parts for name in strata])
    return shares / shares.sum()


def log_sum(values: Array) -> float:
    """The logarithm of the sum of exponentials."""
    most = values.max()
    return float(most + np.log(np.exp(values - most).sum()))
