"""The statistical part: drafts drawn at real vocabulary sizes, and bets that what comes of them has another law.

Where a rule gives the exact law of what it emits, that law is looked at and no token is drawn; and what a tuple of
drafts brings by chance, which its drafting law alone tells, is taken off. So a draw is worth many emitted tokens.
Features say what is looked at. A feature gives every token a number. Averaged over the emitted token it has a known
mean if the verifier is lossless, so what a draw adds, `y`, has mean zero, and a player who stakes a fixed part of the
capital on it,

    capital = product over draws of (1 + stake y),

has one unit on average at the end (never less than nothing, since stake |y| < 1). By Markov's inequality it reaches
1 / odds with probability at most `odds`: no normal approximation, no bins that are expected often enough. Where there
is a bias of d and y has variance s^2, the best stake is about d / s^2, and log capital grows by d^2 / (2 s^2) a draw.
The stake is bounded by what y can be at all. What it was in some draws is no bound: the mean may hang on a rare tuple.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from multidraft.auditing.exact import impossible, optimum
from multidraft.auditing.pairs import large_pair
from multidraft.errors import AdviceError
from multidraft.verification.distributions import describe, uniform
from multidraft.verification.law import Law
from multidraft.verification.scheme import Scheme

POWER = 2.326  # standard deviations: 99 % of a normal law lie above the mean less these
MAX_LOST_CAPITAL = 0.9  # of the capital is lost at worst
MAX_STAKE = 1e12  # the stake on what cannot happen
GROUPS, BLOCKS = 12, 8  # of tokens by how much the draft overrates them; by their probability, and by their ids
FREQUENT_PROBABILITY, MAX_FREQUENT_TOKENS = 1e-3, 64  # tokens that are looked at one by one
BATCH_NUMBERS = 500_000  # numbers in a batch of rows
MAX_SUM_ERROR = 1e-3  # how far float32 outcomes may be from summing to one
SUM_ROUNDING = 2e-6  # sums of float32 outcomes may be off by so much
DRAWS_PER_PILOT = 5  # one draw in so many tells what to stake, and is no part of the test
RIDGE = 2.5e-4  # keeps what the pilot explains by chance small


@dataclass(frozen=True)
class Sampler:
    """A verifier that gives tokens only, with the law that its drafts are drawn from."""

    name: str
    law: Law
    verify: Callable[..., Any]

    within = 0.0  # it states no deviation

    def tokens(self, target: Tensor, draft: Tensor, drafted: Tensor, generator: torch.Generator) -> Tensor:
        """One emitted token for each row."""
        tokens = self.verify(target.clone(), draft.clone(), drafted.clone(), generator)
        if not isinstance(tokens, Tensor) or tokens.dtype.is_floating_point or tokens.shape != drafted.shape[:-1]:
            raise AdviceError(
                f"{self.name} returned {describe(tokens)}; a sampler returns one token id for each of the "
                f"{len(drafted)} rows: an integer tensor of shape ({len(drafted)},)"
            )
        return tokens.long()


Subject = Scheme | Sampler


@dataclass(frozen=True)
class Sampled:
    """What draws at one vocabulary size say. Biases are measured in the direction from the target to the draft."""

    vocabulary: int
    draft: str  # "near" the target or "far" from it
    trials: int
    features: dict[str, int]  # of each of the tests
    p_values: dict[str, float]
    alarm: float  # a test raises the alarm below it
    out_of_range: int  # emitted ids that are no tokens
    impossible: float
    smallest_leak: float | None  # share of the tokens that come from the draft distribution instead of the target
    smallest_bias: float | None  # the total variation that this makes, caught with 99 % probability
    acceptance: float | None
    standard_error: float | None
    optimum: float | None

    @property
    def biased(self) -> bool:
        """Whether something raises the alarm."""
        alarm = min(self.p_values.values()) < self.alarm
        return alarm or self.out_of_range > 0 or self.impossible > MAX_SUM_ERROR


class Draws(NamedTuple):
    """What is seen of drawn tuples."""

    values: Float[Tensor, "draws features"]  # of what comes of each, less what they are on average if lossless
    surprises: Float[Tensor, "draws controls"]
    accepted: Float[Tensor, " draws"]  # acceptance rates; zero where only tokens can be seen
    wrong: Tensor  # of each, how far its outcome is from being a law, or whether its id is no token


def sample(subject: Subject, vocabulary: int, kind: str, trials: int, odds: float, within: float, seed: int) -> Sampled:
    """Draw tuples, and bet on many tokens together ("coarse") and on each frequent one ("fine").

    A bet wins 1 / `odds` times its stake where the total variation from the target is above `within`.
    """
    if trials < 100 or vocabulary < 2:
        raise AdviceError(f"{trials} trials at {vocabulary} tokens tell nothing; use at least 100 trials and 2 tokens")
    target, draft = large_pair(subject.law, vocabulary, kind, seed)
    features, only_tokens = Features.of(target, draft), isinstance(subject, Sampler)
    draws = look(subject, target, draft, features, trials, torch.Generator().manual_seed(seed))
    allowed = within + (0.0 if only_tokens else SUM_ROUNDING)
    tests = {name: bet(draws, features, part, allowed, odds) for name, part in features.parts.items()}
    least = min((leak for _, leak in tests.values() if leak is not None), default=None)
    rates, wrong = draws.accepted, draws.wrong
    return Sampled(
        vocabulary,
        kind,
        trials,
        {name: len(features.mean[part]) for name, part in features.parts.items()},
        {name: p_value for name, (p_value, _) in tests.items()},
        odds,
        int(wrong.sum()) if only_tokens else 0,
        0.0 if only_tokens else float(wrong.max()),
        least,
        None if least is None else least * features.distance,
        None if only_tokens else float(rates.mean()),
        None if only_tokens else float(rates.std() / trials**0.5),
        optimum(subject.law, target, draft),
    )


@dataclass(frozen=True)
class Features:
    """Numbers from 0 to 1 of every token, and by how much they shift where the draft's tokens are emitted."""

    table: Float[Tensor, "vocabulary features"]
    parts: dict[str, slice]  # about many tokens together ("coarse"), and about few ("fine")
    mean: Float[Tensor, " features"]  # if the target's law is what is emitted
    shift: Float[Tensor, " features"]
    distance: float  # the total variation between target and draft

    @classmethod
    def of(cls, target: Float[Tensor, " vocabulary"], draft: Tensor) -> "Features":
        """For a target and a draft distribution, or several: their mean, among the tokens that the target can emit.

        About many: how much the draft overrates a token, and groups that it overrates alike. About few: the tokens that
        never come, groups by probability and by id, and each of the most frequent tokens.
        """
        p, size = target.double() / target.double().sum(), len(target)
        q = (draft.mean(-2) if draft.ndim > 1 else draft).double() * (p > 0)
        q = q / q.sum().clamp(min=1e-300)
        order, ratio = p.argsort(descending=True, stable=True), q / p.clamp(min=1e-300)
        often = order[:MAX_FREQUENT_TOKENS][p[order[:MAX_FREQUENT_TOKENS]] >= FREQUENT_PROBABILITY]
        overrated = torch.where(p > 0, q / (q + p), 0.5)[:, None]
        coarse = [overrated, shares((p + q) / 2, ratio.argsort(stable=True), GROUPS)]
        fine = [(p == 0)[:, None], one_hot(torch.arange(size) * BLOCKS // size), shares(p, order, BLOCKS)]
        table = torch.cat([*coarse, *fine, one_hot(often, size).T], -1).float()  # as large pairs are
        split = sum(part.shape[1] for part in coarse)
        parts = {"coarse": slice(0, split), "fine": slice(split, None)}
        distance = float((p - q).abs().sum() / 2)
        return cls(table, parts, p @ table.double(), (q - p) @ table.double(), distance)


def shares(
    mass: Float[Tensor, " vocabulary"], order: Int[Tensor, " vocabulary"], count: int
) -> Float[Tensor, "vocabulary some"]:
    """Marks of at most `count` groups of about equal mass, neighbours in `order` together."""
    ordered = mass[order]
    group = ((ordered.cumsum(0) - ordered / 2) / mass.sum() * count).long().clamp(max=count - 1)
    marks = one_hot(torch.empty_like(group).scatter_(0, order, group), count).double()
    return marks[:, marks.any(0)]


def look(
    subject: Subject, target: Tensor, draft: Tensor, features: Features, trials: int, generator: torch.Generator
) -> Draws:
    """Draw tuples and see what comes of them, batch by batch; where that is a law, once of every distinct tuple."""
    law, size, drawn = subject.law, max(1, BATCH_NUMBERS // draft.numel()), []
    for first in range(0, trials, size):
        rows = min(size, trials - first)
        numbers = uniform((rows, law.num_uniforms), generator, draft.device)
        drafts = (numbers[:, law.width :] < law.draft_probability).all(-1, keepdim=True)  # whether at all
        drawn.append(torch.cat([drafts, law.draw_all(draft.expand(rows, *draft.shape), numbers[:, : law.width])], -1))
    tuples, back = torch.cat(drawn), torch.arange(trials)
    if isinstance(subject, Scheme):
        tuples, back = tuples.unique(dim=0, return_inverse=True)
    seen = [look_at(subject, target, draft, features, batch, generator) for batch in tuples.split(size)]
    return Draws(*(torch.cat(part)[back] for part in zip(*seen, strict=True)))


def look_at(
    subject: Subject, target: Tensor, draft: Tensor, features: Features, tuples: Tensor, generator: torch.Generator
) -> Draws:
    """What comes of some tuples: of each the token that a sampler emits, or the exact law of what a rule emits."""
    drafts, drawn = tuples[:, :1] > 0, tuples[:, 1:]
    drafted = drawn.masked_fill(~drafts, -1)
    target, draft = target.expand(len(tuples), -1), draft.expand(len(tuples), *draft.shape)
    chance = surprises(subject.law, draft, drafts, drawn, features.table[:, features.parts["coarse"]])
    if isinstance(subject, Sampler):
        tokens = subject.tokens(target, draft, drafted, generator)
        good = (tokens >= 0) & (tokens < target.shape[-1])
        values = (features.table[tokens.where(good, 0)] - features.mean) * good[:, None]
        return Draws(values, chance, torch.zeros(len(good)), ~good)
    outcome = subject.verify(target, draft, drafted)
    values = (outcome.law().nan_to_num_().clamp_(min=0) @ features.table).double() - features.mean
    accepted = outcome.acceptance().double()
    return Draws(values, chance, accepted, torch.full_like(accepted, impossible(outcome, target)))


def surprises(
    law: Law, draft: Tensor, drafts: Tensor, drawn: Int[Tensor, "rows width"], values: Tensor
) -> Float[Tensor, "rows controls"]:
    """What was drafted less what was to be expected after the tokens before it: zero on average, whatever the rule.

        values[x_j] - sum_v P(x_j = v | x_1, .., x_{j-1}) values[v]

    `drawn` are the tuples of rows that draft, and would be those of the others.
    """
    parts = [drafts.double() - law.draft_probability]
    for j in range(law.width):
        surprise = torch.zeros(len(drawn), values.shape[1], dtype=torch.float64)
        if (drawn[:, j] >= 0).any():  # else it was sure to stay empty
            expected = law.conditional(draft, drawn[:, :j]) @ values.to(draft)
            surprise = values[drawn[:, j].clamp(min=0)] * (drawn[:, j, None] >= 0) - expected.double()
        parts.append(drafts * surprise)
    return torch.cat(parts, -1)


def bet(draws: Draws, features: Features, part: slice, allowed: float, odds: float) -> tuple[float, float | None]:
    """The p-value of a part of the features, and the smallest leak that they show: a share of tokens from the draft.

    The first draws, the pilot, tell the stakes, which are fixed for all others.
    """
    y, low, high = draws.values[:, part].clone(), -features.mean[part], 1 - features.mean[part]
    pilot = -(-len(y) // DRAWS_PER_PILOT)
    if part.start == 0:
        known, first = draws.surprises[:pilot], y[:pilot, 0] - y[:pilot, 0].mean()  # least squares, pulled to nothing
        square = known.T @ known + RIDGE * pilot * torch.eye(known.shape[1], dtype=known.dtype)
        weights = torch.linalg.solve(square, known.T @ first)
        y[:, 0] -= draws.surprises @ weights
        of_tokens = features.table[:, part].double() @ weights[1:].unflatten(0, (-1, y.shape[1])).T
        reach = weights[0].abs() + (of_tokens.amax(0) - of_tokens.amin(0)).sum()  # whatever is drafted
        low[0], high[0] = low[0] - reach, high[0] + reach
    bets = Bets(low, high, allowed, y[:pilot].var(0), len(y) - pilot, odds)
    return bets.p_value(y[pilot:]), bets.smallest(features.shift[part])


@dataclass(frozen=True)
class Bets:
    """On each feature a stake that its mean is larger, and one that it is smaller than if nothing were biased."""

    low: Float[Tensor, " features"]  # the smallest and the largest that `y` can be
    high: Float[Tensor, " features"]
    allowed: float  # by how much its mean may be off as stated
    variance: Float[Tensor, " features"]
    draws: int
    odds: float

    @cached_property
    def stake(self) -> Float[Tensor, "sides features"]:
        """What wins with the smallest bias: sqrt(2 log(1 / odds) / (draws s^2)), as far as `y` allows."""
        max_stake = MAX_LOST_CAPITAL / (torch.stack([-self.low, self.high]) + self.allowed).clamp(min=1 / MAX_STAKE)
        best_square = 2 * math.log(2 * len(self.variance) / self.odds) / self.draws / self.variance.clamp(min=1e-30)
        return torch.minimum(max_stake, best_square.sqrt())

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
        needed = math.log(self.stake.numel() / self.odds) / self.draws
        needed = needed + spread**2 / 2 + POWER * spread / self.draws**0.5
        off = (1 - (1 - 2 * needed).clamp(min=0).sqrt()) / self.stake + self.allowed
        leaks = torch.where(needed < 0.5, off, torch.inf) / torch.stack([shift, -shift]).clamp(min=1e-30)
        least = float(leaks.min())
        return least if least <= 1 else None
