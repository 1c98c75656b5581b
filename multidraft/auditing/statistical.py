"""The statistical part: drafts drawn at real vocabulary sizes, and bets that what comes of them has another law.

Where a rule gives the exact law of what it emits, that law is looked at and no token is drawn; and what a tuple of
drafts brings by chance, which its drafting law alone tells, is taken off. So a draw is worth many emitted tokens.
Features say what is looked at: what the draft overrates, how likely tokens are, their ids, each frequent one.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from multidraft.auditing.bets import Alarm, Bets
from multidraft.auditing.exact import impossible
from multidraft.auditing.pairs import large_pair
from multidraft.auditing.subject import Sampler, Subject
from multidraft.errors import AdviceError
from multidraft.verification.distributions import uniform
from multidraft.verification.law import Law
from multidraft.verification.laws import optimum as optimum_of
from multidraft.verification.scheme import Scheme

GROUPS, BLOCKS = 12, 8  # of tokens by how much the draft overrates them; by their probability, and by their ids
FREQUENT, MOST_FREQUENT = 1e-3, 64  # tokens that are looked at one by one


@dataclass(frozen=True)
class Features:
    """Numbers of every token; what they are on average is known where a verifier is lossless."""

    target: Float[Tensor, " vocabulary"]
    draft: Float[Tensor, " vocabulary"]  # the mean of several, among the tokens that the target can emit
    coarse: Float[Tensor, "vocabulary coarse"]  # about many tokens together
    fine: Float[Tensor, "vocabulary fine"]

    @classmethod
    def of(cls, target: Float[Tensor, " vocabulary"], draft: Tensor) -> "Features":
        """For a target and a draft distribution, or several."""
        p = target.double() / target.double().sum()
        q = (draft.mean(-2) if draft.ndim > 1 else draft).double() * (p > 0)
        q = q / q.sum().clamp(min=1e-300)
        return cls(p, q, about_many(p, q), about_few(p))

    @cached_property
    def table(self) -> Float[Tensor, "vocabulary features"]:
        """All of them."""
        return torch.cat([self.coarse, self.fine], -1)

    @cached_property
    def single(self) -> Float[Tensor, "vocabulary features"]:
        """The table in float32, as large pairs are."""
        return self.table.float()

    @property
    def parts(self) -> dict[str, slice]:
        """Where the coarse and the fine ones stand in the table."""
        split = self.coarse.shape[1]
        return {"coarse": slice(0, split), "fine": slice(split, None)}

    @cached_property
    def mean(self) -> Float[Tensor, " features"]:
        """What every feature is on average if the target's law is what is emitted."""
        return self.target @ self.table


def about_many(p: Float[Tensor, " vocabulary"], q: Float[Tensor, " vocabulary"]) -> Float[Tensor, "vocabulary coarse"]:
    """How much the draft overrates a token, between -1 and 1; and groups of tokens that it overrates alike."""
    overrated = (q - p) / (q + p).clamp(min=1e-300)
    groups = shares((p + q) / 2, (q / p.clamp(min=1e-300)).argsort(stable=True), GROUPS)
    return torch.cat([overrated[:, None], groups], -1)


def about_few(p: Float[Tensor, " vocabulary"]) -> Float[Tensor, "vocabulary fine"]:
    """The tokens that never come, groups by probability and by id, and each of the most frequent tokens."""
    order, size = p.argsort(descending=True, stable=True), len(p)
    never, by_id = (p == 0).double()[:, None], one_hot(torch.arange(size) * BLOCKS // size).double()
    often = order[:MOST_FREQUENT][p[order[:MOST_FREQUENT]] >= FREQUENT]
    return torch.cat([never, by_id, shares(p, order, BLOCKS), one_hot(often, size).double().T], -1)


def shares(
    mass: Float[Tensor, " vocabulary"], order: Int[Tensor, " vocabulary"], count: int
) -> Float[Tensor, "vocabulary some"]:
    """Marks of at most `count` groups of about equal mass, neighbours in `order` together."""
    ordered = mass[order]
    group = ((ordered.cumsum(0) - ordered / 2) / mass.sum() * count).long().clamp(max=count - 1)
    marks = one_hot(torch.empty_like(group).scatter_(0, order, group), count).double()
    return marks[:, marks.any(0)]


def surprises(
    law: Law, draft: Tensor, drawn: Int[Tensor, "rows width"], drafted: Int[Tensor, "rows width"], values: Tensor
) -> Float[Tensor, "rows controls"]:
    """What was drafted less what was to be expected after the tokens before it: zero on average, whatever the rule.

        values[x_j] - sum_v P(x_j = v | x_1, .., x_{j-1}) values[v]

    `drawn` are the tuples before it was decided, by a coin, whether to draft at all.
    """
    drafts = (drawn == drafted).all(-1, keepdim=True).double()
    found = [drafts - law.draft_probability]
    for j in range(law.width):
        if (drawn[:, j] >= 0).any():  # else it was sure to stay empty
            expected = (law.conditional(draft, drawn[:, :j]) @ values.to(draft)).double()
            here = values[drawn[:, j].clamp(min=0)] * (drawn[:, j, None] >= 0)
            found.append(drafts * (here - expected))
        else:
            found.append(torch.zeros(len(drawn), values.shape[1], dtype=torch.float64))
    return torch.cat(found, -1)


AT_ONCE = 500_000  # numbers in a batch of rows
DOUBTFUL = 1e-3  # how far float32 outcomes may be from summing to one
ROUNDING = 2e-6  # sums of float32 outcomes may be off by so much
PILOT = 5  # one draw in so many tells what to stake, and is no part of the test
RIDGE = 1e-3  # keeps what the pilot explains by chance small
NARROW, WIDE = 0.1, 1.5  # times the farthest that the pilot shows: what lies further out is cut to that


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
        return alarm or self.out_of_range > 0 or self.impossible > DOUBTFUL


@dataclass(frozen=True)
class Draws:
    """What is seen of drawn tuples: the features of what comes of each, less what they are on average if lossless."""

    values: Float[Tensor, "draws features"]
    surprises: Float[Tensor, "draws controls"]
    accepted: Float[Tensor, " outcomes"]  # acceptance rates; empty where only tokens can be seen
    out_of_range: int
    impossible: float


def sample(subject: Subject, vocabulary: int, kind: str, trials: int, alarm: Alarm, seed: int) -> Sampled:
    """Draw tuples, and bet on many tokens together ("coarse") and on each frequent one ("fine")."""
    if trials < 100 or vocabulary < 2:
        raise AdviceError(f"{trials} trials at {vocabulary} tokens tell nothing; use at least 100 trials and 2 tokens")
    target, draft = large_pair(subject.law, vocabulary, kind, seed)
    features = Features.of(target, draft)
    draws = look(subject, target, draft, features, trials, torch.Generator().manual_seed(seed))
    tests = {name: Test.of(draws, features, part, alarm) for name, part in features.parts.items()}
    leaks = [leak for test in tests.values() if (leak := test.smallest_leak) is not None]
    rates = draws.accepted
    return Sampled(
        vocabulary,
        kind,
        trials,
        {name: len(test.shift) for name, test in tests.items()},
        {name: test.bets.p_value(test.y) for name, test in tests.items()},
        alarm.odds,
        draws.out_of_range,
        draws.impossible,
        min(leaks, default=None),
        min(leaks) * float((features.target - features.draft).abs().sum() / 2) if leaks else None,
        float(rates.mean()) if len(rates) else None,
        float(rates.std() / len(rates) ** 0.5) if len(rates) else None,
        optimum(subject, target, draft),
    )


def look(
    subject: Subject, target: Tensor, draft: Tensor, features: Features, trials: int, generator: torch.Generator
) -> Draws:
    """Draw tuples and see what comes of them, batch by batch; where that is a law, once of every distinct tuple."""
    size = max(1, AT_ONCE // draft.numel())
    rows = [size] * (trials // size) + [trials % size] * (trials % size > 0)
    tuples, back = torch.cat([draw(subject.law, draft, count, generator) for count in rows]), torch.arange(trials)
    if isinstance(subject, Scheme):
        tuples, back = tuples.unique(dim=0, return_inverse=True)
    seen = [look_at(subject, target, draft, features, batch, generator) for batch in tuples.split(size)]
    accepted = torch.cat([part.accepted for part in seen])
    return Draws(
        torch.cat([part.values for part in seen])[back],
        torch.cat([part.surprises for part in seen])[back],
        accepted[back] if len(accepted) else accepted,
        sum(part.out_of_range for part in seen),
        max(part.impossible for part in seen),
    )


def draw(law: Law, draft: Tensor, rows: int, generator: torch.Generator) -> Int[Tensor, "rows both"]:
    """So many tuples, each beside what it would be if something were always drafted."""
    draft, numbers = draft.expand(rows, *draft.shape), uniform((rows, law.numbers), generator, draft.device)
    drawn = law.draw_all(draft, numbers[:, : law.width])
    return torch.cat([drawn, drawn if law.draft_probability == 1 else law.draw(draft, numbers)], -1)


def look_at(
    subject: Subject, target: Tensor, draft: Tensor, features: Features, tuples: Tensor, generator: torch.Generator
) -> Draws:
    """What comes of some tuples: of each the token that a sampler emits, or the exact law of what a rule emits."""
    drawn, drafted = tuples.chunk(2, -1)
    target, draft = target.expand(len(tuples), -1), draft.expand(len(tuples), *draft.shape)
    chance = surprises(subject.law, draft, drawn, drafted, features.coarse)
    if isinstance(subject, Sampler):
        tokens = subject.tokens(target, draft, drafted, generator)
        good = (tokens >= 0) & (tokens < target.shape[-1])
        values = (features.table[tokens.where(good, 0)] - features.mean) * good[:, None]
        return Draws(values, chance, torch.zeros(0), int((~good).sum()), 0.0)
    outcome = subject.verify(target, draft, drafted)
    emitted = outcome.law().nan_to_num_().clamp_(min=0)
    values = (emitted @ features.single).double() - features.mean
    return Draws(values, chance, outcome.acceptance().double(), 0, impossible(outcome, target))


@dataclass(frozen=True)
class Test:
    """Bets on some features, and what they are about."""

    bets: Bets
    y: Float[Tensor, "draws features"]
    shift: Float[Tensor, " features"]  # by which the features of the draft distribution differ from the target's

    @classmethod
    def of(cls, draws: Draws, features: Features, part: slice, alarm: Alarm) -> "Test":
        """The first draws, the pilot, tell the stakes, which are fixed for all others."""
        y, table, mean = draws.values[:, part], features.table[:, part], features.mean[part]
        pilot, low, high = -(-len(y) // PILOT), table.min(0).values - mean, table.max(0).values - mean
        rounding = ROUNDING * (len(draws.accepted) > 0)  # tokens have none
        allowed = alarm.within * (high - low) + rounding
        if part.start == 0:
            y = y.clone()
            y[:, 0] = quiet(y[:, 0], draws.surprises, pilot)
            farthest = (WIDE * y[:pilot, 0].abs().max()).clamp(min=NARROW)
            low[0], high[0] = -farthest, farthest
        bets = Bets.place(low, high, allowed, y[:pilot].var(0), len(y) - pilot, alarm.odds)
        return cls(bets, y[pilot:], features.draft @ table - mean)

    @property
    def smallest_leak(self) -> float | None:
        """The share of tokens from the draft distribution that raises the alarm with 99 % probability."""
        return self.bets.smallest(self.shift)


def quiet(y: Float[Tensor, " draws"], chance: Float[Tensor, "draws controls"], pilot: int) -> Float[Tensor, " draws"]:
    """What the surprises do not explain, by least squares over the pilot, pulled towards nothing."""
    known = chance[:pilot]
    square = known.T @ known + RIDGE * pilot * torch.eye(known.shape[1], dtype=known.dtype)
    return y - chance @ torch.linalg.solve(square, known.T @ (y[:pilot] - y[:pilot].mean()))


def optimum(subject: Subject, target: Tensor, draft: Tensor) -> float | None:
    """The optimum of the drafting law, where there is a formula."""
    return None if subject.law.optimal is None else float(optimum_of(target.double(), draft.double(), subject.law))
