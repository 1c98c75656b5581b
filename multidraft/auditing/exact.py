"""The exact part: a verifier's law, summed over every tuple of drafts, beside the target. No sampling, no seed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from multidraft.auditing.pairs import Pair
from multidraft.verification.outcome import Outcome, over_all_tuples
from multidraft.verification.registry import entries
from multidraft.verification.scheme import Scheme

SHOWN = 6
SOLVER = "iid:linear_program"  # whose rule is optimal for any law


@dataclass(frozen=True)
class Case:
    """A target and a draft distribution, and what the verifier makes of them; enough to see it again."""

    label: str
    target: list[float]
    draft: list[float] | list[list[float]]
    drafts: list[tuple[list[int], float]]  # the likeliest tuples, each with its probability
    law: list[float]  # probability of emitting each token
    deviation: float  # largest difference from the target at a token
    total_variation: float
    impossible: float  # how far an outcome is from being a law: negative, or not summing to one
    acceptance: float
    optimum: float | None  # of the drafting law, where the target sums to one


@dataclass(frozen=True)
class Exact:
    """All pairs together; acceptance and optimum are means over those that sum to one."""

    pairs: int
    tuples: int
    deviation: float
    total_variation: float
    impossible: float
    acceptance: float
    optimum: float | None
    worst: Case


def examine_all(scheme: Scheme, pairs: list[Pair], totals: tuple[float, ...]) -> Exact:
    """Every pair, with the target scaled to each of the totals."""
    examined = [examine(scheme, label, w * p, q) for label, p, q in pairs for w in totals]
    cases = [case for case, _ in examined]
    whole = [case for case in cases if case.optimum is not None] or cases
    optima = [case.optimum for case in whole if case.optimum is not None]
    return Exact(
        pairs=len(cases),
        tuples=sum(count for _, count in examined),
        deviation=max(case.deviation for case in cases),
        total_variation=max(case.total_variation for case in cases),
        impossible=max(case.impossible for case in cases),
        acceptance=sum(case.acceptance for case in whole) / len(whole),
        optimum=sum(optima) / len(optima) if optima else None,
        worst=max(cases, key=lambda case: max(case.total_variation, case.impossible)),
    )


def examine(scheme: Scheme, label: str, target: Tensor, draft: Tensor) -> tuple[Case, int]:
    """One pair: sum of P(drafted) * (accept + residual) over all tuples; also how many there are."""
    found = over_all_tuples(scheme.entry.rule, scheme.law, target[None], draft[None])
    law, drafted, weight = found.emitted[0], found.drafted, found.probability
    likely = weight.argsort(descending=True, stable=True)[:SHOWN].tolist()
    case = Case(
        label,
        target.tolist(),
        draft.tolist(),
        [(drafted[i].tolist(), float(weight[i])) for i in likely],
        law.tolist(),
        number((law - target).abs().max()),
        number((law - target).abs().sum() / 2),
        impossible(found.outcome, target),
        float(found.acceptance),
        optimum(scheme, target, draft) if float(target.sum()) > 1 - 1e-9 else None,
    )
    return case, len(drafted)


def impossible(outcome: Outcome, target: Tensor) -> float:
    """How far the worst outcome is from the law of one token: a negative entry, a claim for no token, a wrong sum."""
    total = outcome.accept.sum(-1) + outcome.residual.sum(-1)
    over = total - 1 if float(target[..., :].sum(-1).min()) < 1 - 1e-4 else (total - 1).abs()
    claims = outcome.accept.masked_fill(outcome.drafted >= 0, 0.0).abs()
    worst = [over.max(), -outcome.accept.min(), -outcome.residual.min(), claims.max()]
    return max(0.0, *map(number, worst))


def optimum(scheme: Scheme, target: Tensor, draft: Tensor) -> float | None:
    """The largest acceptance rate that a lossless rule can reach; None where that takes a solver and there is none."""
    if scheme.law.optimal is not None:
        return float(scheme.optimal_acceptance_rate(target, draft))
    try:
        return float(over_all_tuples(entries()[SOLVER].rule, scheme.law, target[None], draft[None]).acceptance)
    except (ImportError, KeyError):
        return None


def number(value: Tensor) -> float:
    """A float; what is no number counts as infinitely far off."""
    return float(torch.nan_to_num(value, nan=torch.inf))
