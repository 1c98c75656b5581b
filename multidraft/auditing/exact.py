"""What can be summed up, with no noise and no seed: a rule over every tuple of drafts, a walk over every tree."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from multidraft.auditing.enumeration import first_tokens, largest_difference, step_law, target_law
from multidraft.auditing.pairs import NamedPair
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import Walker
from multidraft.errors import AdviceError
from multidraft.models.ensemble import SideBySide
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.models.reader import Reader
from multidraft.verification.law import Law
from multidraft.verification.optimum import optimum as optimal
from multidraft.verification.outcome import Outcome, over_all_tuples
from multidraft.verification.registry import entries
from multidraft.verification.scheme import Scheme

SHOWN_TUPLES = 6
SOLVER = "iid:linear_program"  # whose rule is optimal for any law
TREES = ("1x1x1", "2x1", "2x2")
KINDS = {"peaked": 0.3, "flat": 5.0}  # concentration of the Dirichlet law of the conditionals
MAX_TREES = 5_000
PROMPT = (0,)


@dataclass(frozen=True)
class Case:
    """A target and a draft distribution, and what the verifier makes of them; enough to see it again."""

    label: str
    target: list[float]
    draft: list[float] | list[list[float]]
    drafts: list[tuple[list[int], float]]  # the likeliest tuples, each with its probability
    tuples: int  # how many there are
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


def examine_all(scheme: Scheme, pairs: list[NamedPair], totals: tuple[float, ...]) -> Exact:
    """Every pair, with the target scaled to each of the totals."""
    cases = [examine(scheme, label, w * p, q) for label, p, q in pairs for w in totals]
    whole = [case for case in cases if case.optimum is not None] or cases
    optima = [case.optimum for case in whole if case.optimum is not None]
    return Exact(
        pairs=len(cases),
        tuples=sum(case.tuples for case in cases),
        deviation=max(case.deviation for case in cases),
        total_variation=max(case.total_variation for case in cases),
        impossible=max(case.impossible for case in cases),
        acceptance=sum(case.acceptance for case in whole) / len(whole),
        optimum=sum(optima) / len(optima) if optima else None,
        worst=max(cases, key=lambda case: max(case.total_variation, case.impossible)),
    )


def examine(scheme: Scheme, label: str, target: Tensor, draft: Tensor) -> Case:
    """One pair: sum of P(drafted) * (accept + residual) over all tuples."""
    summed = over_all_tuples(scheme.entry.rule, scheme.law, target[None], draft[None])
    emitted, drafted, weight = summed.emitted[0], summed.drafted, summed.probability
    likely = weight.argsort(descending=True, stable=True)[:SHOWN_TUPLES].tolist()
    return Case(
        label,
        target.tolist(),
        draft.tolist(),
        [(drafted[i].tolist(), float(weight[i])) for i in likely],
        len(drafted),
        emitted.tolist(),
        number((emitted - target).abs().max()),
        number((emitted - target).abs().sum() / 2),
        impossible(summed.outcome, target),
        float(summed.acceptance),
        optimum(scheme.law, target, draft, SOLVER) if float(target.sum()) > 1 - 1e-9 else None,
    )


def impossible(outcome: Outcome, target: Tensor) -> float:
    """How far the worst outcome is from the law of one token: a negative entry, a claim for no token, a wrong sum."""
    total = outcome.accept.sum(-1) + outcome.residual.sum(-1)
    over = total - 1 if float(target.sum(-1).min()) < 1 - 1e-4 else (total - 1).abs()
    claims = outcome.accept.masked_fill(outcome.drafted >= 0, 0.0).abs()
    worst = [over.max(), -outcome.accept.min(), -outcome.residual.min(), claims.max()]
    return max(0.0, *map(number, worst))


def optimum(law: Law, target: Tensor, draft: Tensor, solver: str = "") -> float | None:
    """The largest acceptance rate that a lossless rule can reach, by the law's formula, or by a solver over all tuples.

    None where the law has no formula and the solver is not installed.
    """
    if law.optimal is not None:
        return float(optimal(target.double(), draft.double(), law))
    try:
        return float(over_all_tuples(entries()[solver].rule, law, target[None], draft[None]).acceptance)
    except (ImportError, KeyError):
        return None


def number(value: Tensor) -> float:
    """A float; what is no number counts as infinitely far off."""
    return float(torch.nan_to_num(value, nan=torch.inf))


@dataclass(frozen=True)
class Walked:
    """A walk over a tree: how far the law of the first tokens is from the target's, and how many are accepted."""

    walk: str
    tree: str
    vocabulary: int
    kind: str
    deviation: float
    total_variation: float
    accepted: float


def follow_walk(scheme: Scheme, walk: str | Walker, tree: str, kind: str, seed: int) -> Walked:
    """The law of the first tokens of a step, over every tuple at every node, every answer to every coin."""
    shape = Tree.parse(tree)
    vocabulary = 3 if 3 ** sum(shape.drafts) <= MAX_TREES else 2
    tables = [random_table(vocabulary, 3, 3 * seed + model, KINDS[kind]) for model in range(3)]
    target, *drafters = (TableModel(table, vocabulary) for table in tables)
    draft: Reader = SideBySide(drafters) if scheme.law.per_draft_distributions else drafters[0]
    step = step_law(target, draft, list(PROMPT), DecodeConfig(scheme, walk), StaticTree(shape))

    def conditional(tokens: tuple[int, ...]) -> Tensor:
        return tables[0]((*PROMPT, *tokens))

    depth = max(shape.depths)
    ours, right = first_tokens(step.law, conditional, depth), target_law(conditional, depth)
    deviation = largest_difference(ours, right)
    distance = sum(abs(ours.get(tokens, 0.0) - right.get(tokens, 0.0)) for tokens in ours | right) / 2
    if not math.isfinite(distance):
        deviation = distance = math.inf
    return Walked(str(getattr(walk, "__name__", walk)), tree, vocabulary, kind, deviation, distance, step.accepted)


def fits(scheme: Scheme, tree: str) -> bool:
    """Whether the scheme can draw this tree; raises where there are too many ways to draw it."""
    counts = set(Tree.parse(tree).drafts) - {0}
    if 2 ** (drawn := sum(Tree.parse(tree).drafts)) > MAX_TREES:
        raise AdviceError(
            f"tree {tree} can be drawn in up to 2^{drawn} ways, too many to enumerate; audit a smaller one, such as 2x2"
        )
    return scheme.law.fixed_drafts is None or counts == {scheme.law.fixed_drafts}
