"""Plans with costs and acceptance that are made up, so that no test measures seconds."""

from typing import Any

from multidraft.autotune.costs import Costs, CostsByRows, Curve
from multidraft.autotune.identity import identity
from multidraft.autotune.pair_plan import DRAFT_PROBABILITIES, AtTemperature, PairPlan
from multidraft.autotune.predictions import CLASSES, COUNTS, Confidence, Predictions, odds
from multidraft.autotune.rates import WEIGHTS, Rates
from multidraft.decoding.tree import Tree
from multidraft.verification.scheme import Scheme

TREES = ["1", "1x1x1", "2x1x1x1", "3x1x1", "3/2,1,0"]


def costs(target: float = 10.0, level: float = 1.0, node: float = 0.0, more: float = 0.0) -> Costs:
    """A pass takes `target` and `node` for each token more, a level of drafts `level` and `more` for each node more."""
    return Costs(
        target=Curve((1, 2), (target, target + node)),
        level=Curve((1, 2), (level, level + more)),
        draw=0.0,
        plain=0.0,
        step=0.0,
        node=0.0,
    )


def rates(one: float, most: int = 4, second: float = 0.5) -> Rates:
    """One draft is accepted with a probability; each further one takes a share of what was left."""
    left, acceptance, shares, weights = 1 - one, [[0.0] * len(WEIGHTS)], [list[float]()], [list[float]()]
    claims = [one]
    for _ in range(most):
        total = sum(claims)
        acceptance.append([total] * len(WEIGHTS))
        shares.append([claim / total if total else 1 / len(claims) for claim in claims])
        weights.append([1.0] * len(claims))
        claims = [*claims, left * second]
        left *= 1 - second
    return Rates(acceptance, shares, weights, [1.0])


def plan(
    known: dict[str, Any], by_rows: CostsByRows | None = None, found: Rates | None = None, trees: list[str] = TREES
) -> PairPlan:
    """A plan of what `known` says, the same at every temperature."""
    drafts = [[0], *(list(Tree.parse(name).drafts) for name in trees)]
    found = found or rates(0.7)
    covered = [a * found.acceptance[1][0] for a in DRAFT_PROBABILITIES]
    learnt = AtTemperature(1.0, found, drafts, [1.0] * 9, covered, predictions(found).confidence)
    return PairPlan(known, 1, by_rows or CostsByRows((1,), (costs(),)), (learnt,), "2026-01-01")


def made_up(subject: Any, tick: Any = None) -> PairPlan:
    """In place of measuring."""
    scheme: Scheme = subject.scheme
    return plan(identity(subject.target, subject.draft, scheme, str(subject.walk)))


def predictions(found: Rates, slope: float = 0.0) -> Predictions:
    """The same acceptance; with confidence its log odds rise by `slope`. Drafts beyond the known ones add nothing."""
    known = [min(count, found.most) for count in range(max(COUNTS) + 1)]
    none = [[0.0] * (count - last) for count, last in enumerate(known)]
    filled = Rates(
        [found.acceptance[last] for last in known],
        [[*found.shares[last], *more] for last, more in zip(known, none, strict=True)],
        [[*found.weights[last], *more] for last, more in zip(known, none, strict=True)],
    )
    accepted = tuple((odds(filled.acceptance[count][0]), slope, 0.0) for count in COUNTS)
    claimed = ((0.0, 1.0, -1.0),) * len(COUNTS)
    return Predictions(filled, Confidence(accepted, claimed, (1 / CLASSES,) * CLASSES))
