"""The statistical part: tokens drawn at real vocabulary sizes, compared with the target by chi-square."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from multidraft.auditing.exact import impossible
from multidraft.auditing.pairs import large_pair
from multidraft.auditing.power import ENOUGH, Alarm, Bins, ChiSquare
from multidraft.auditing.subject import Sampler, Subject
from multidraft.distributions import pick, uniform
from multidraft.errors import AdviceError
from multidraft.transport import LAWS as FORMULAS
from multidraft.verification import solved

COARSE = 12  # bins of the coarse test, at most
AT_ONCE = 4_000_000  # numbers in a batch of rows
DOUBTFUL = 1e-3  # how far float32 outcomes may be from summing to one
Counts = Int[Tensor, " vocabulary"]


@dataclass(frozen=True)
class Sampled:
    """What tokens at one vocabulary size say. Biases are measured in the direction from the target to the draft."""

    vocabulary: int
    draft: str  # "near" the target or "far" from it
    trials: int
    bins: dict[str, int]  # of each of the tests
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


def sample(subject: Subject, vocabulary: int, kind: str, trials: int, alarm: Alarm, seed: int) -> Sampled:
    """Draw drafts and tokens; test every frequent token by itself, and a few bins by how much the draft overrates."""
    if trials < 100 or vocabulary < 2:
        raise AdviceError(f"{trials} trials at {vocabulary} tokens tell nothing; use at least 100 trials and 2 tokens")
    target, draft = large_pair(subject.law, vocabulary, kind, seed)
    generator = torch.Generator().manual_seed(seed)
    tally = Tally(target.double(), draft)
    drafted = draw(subject, draft, trials, generator)
    tally.by_tokens(subject, drafted, generator) if isinstance(subject, Sampler) else tally.by_outcomes(
        subject, drafted, generator
    )
    tests, towards = chi_squares(target, draft, trials, alarm), overall(target, draft)
    p = target.double() / target.double().sum()
    leaks = [leak for test in tests.values() if (leak := test.smallest_leak(p, towards)) is not None]
    accepted = tally.acceptance()
    return Sampled(
        vocabulary,
        kind,
        trials,
        {name: len(test.bins.share) for name, test in tests.items()},
        {name: test.p_value(tally.counts) for name, test in tests.items()},
        alarm.odds,
        tally.out_of_range,
        tally.impossible,
        min(leaks, default=None),
        min(leaks) * float((p - towards).abs().sum() / 2) if leaks else None,
        *accepted,
        optimum(subject, target, draft),
    )


def draw(subject: Subject, draft: Tensor, trials: int, generator: torch.Generator) -> Int[Tensor, "trials width"]:
    """One tuple of drafts for every trial."""
    law, rows = subject.law, batches(trials, draft.numel())
    return torch.cat(
        [law.draw(draft.expand(n, *draft.shape), uniform((n, law.numbers), generator, draft.device)) for n in rows]
    )


def batches(trials: int, numbers: int) -> list[int]:
    """Row counts of the batches."""
    size = max(1, AT_ONCE // numbers)
    return [min(size, trials - start) for start in range(0, trials, size)]


class Tally:
    """Counts of the emitted tokens, and what else was seen on the way."""

    def __init__(self, target: Tensor, draft: Tensor):
        self.target, self.draft = target.float(), draft
        self.counts: Counts = torch.zeros(len(target), dtype=torch.int64)
        self.out_of_range, self.impossible = 0, 0.0
        self.accepted: list[Tensor] = []

    def rows(self, count: int) -> tuple[Tensor, Tensor]:
        """The same target and draft for each of so many rows."""
        return self.target.expand(count, -1), self.draft.expand(count, *self.draft.shape)

    def add(self, tokens: Tensor) -> None:
        """Count tokens."""
        valid = (tokens >= 0) & (tokens < len(self.counts))
        self.out_of_range += int((~valid).sum())
        self.counts += torch.bincount(tokens[valid], minlength=len(self.counts))

    def by_tokens(self, sampler: Sampler, drafted: Tensor, generator: torch.Generator) -> None:
        """Let the sampler emit one token for every tuple."""
        for some in drafted.split(batches(len(drafted), self.draft.numel())):
            self.add(sampler.tokens(*self.rows(len(some)), some, generator))

    def by_outcomes(self, scheme: Subject, drafted: Tensor, generator: torch.Generator) -> None:
        """Emit one token for every tuple by its outcome; equal tuples need only one."""
        tuples, times = drafted.unique(dim=0, return_counts=True)
        sizes = batches(len(tuples), self.draft.numel())
        for some, count in zip(tuples.split(sizes), times.split(sizes), strict=True):
            outcome = scheme.verify(*self.rows(len(some)), some)
            self.impossible = max(self.impossible, impossible(outcome, self.target))
            self.accepted.append(outcome.acceptance().double().repeat_interleave(count))
            law = torch.nan_to_num(outcome.law()).clamp(min=0)
            tokens = pick(law, uniform((len(some), int(count.max())), generator, law.device))
            self.add(tokens[torch.arange(tokens.shape[1]) < count[:, None]])

    def acceptance(self) -> tuple[float | None, float | None]:
        """The mean acceptance rate and its standard error, where outcomes tell."""
        if not self.accepted:
            return None, None
        accepted = torch.cat(self.accepted)
        return float(accepted.mean()), float(accepted.std() / len(accepted) ** 0.5)


def chi_squares(target: Tensor, draft: Tensor, trials: int, alarm: Alarm) -> dict[str, ChiSquare]:
    """The two tests; tokens are pooled with those that the draft overrates as much."""
    p, q, often = target.double() / target.double().sum(), overall(target, draft), ENOUGH / trials
    order, both = (q / p.clamp(min=1e-300)).argsort(stable=True), (p + q) / 2
    fine, coarse = Bins.pool(p, p, order, (often, 0.0)), Bins.pool(p, both, order, (often, 1 / COARSE))
    return {"fine": ChiSquare(fine, trials, alarm), "coarse": ChiSquare(coarse, trials, alarm)}


def overall(target: Tensor, draft: Tensor) -> Tensor:
    """The draft distribution (the mean of several) among the tokens that the target can emit."""
    mean = (draft.mean(-2) if draft.ndim > 1 else draft).double() * (target > 0)
    return mean / mean.sum().clamp(min=1e-300)


def optimum(subject: Subject, target: Tensor, draft: Tensor) -> float | None:
    """The optimum of the drafting law, where there is a formula."""
    law = subject.law
    if law.name not in FORMULAS:
        return None
    try:
        return float(solved.optimum(target.double(), draft.double(), law))
    except AdviceError:  # only for small vocabularies
        return None
