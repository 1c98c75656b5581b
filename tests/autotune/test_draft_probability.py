"""The best probability of making a draft, where it is known in closed form."""

from dataclasses import replace

import pytest
from plans import costs, plan

from multidraft.autotune.costs import CostsByRows
from multidraft.autotune.pair_plan import DRAFT_PROBABILITIES, PairPlan


def made(covered: list[float], level: float, rows: int = 1, node: float = 0.0) -> PairPlan:
    by_rows = CostsByRows((1, rows) if rows > 1 else (1,), (costs(level=level, node=node),) * (1 + (rows > 1)))
    found = plan({}, by_rows)
    return replace(found, acceptance=(replace(found.acceptance[0], covered=covered),))


def test_a_draft_that_is_always_accepted_is_always_made_where_it_pays() -> None:
    assert made(list(DRAFT_PROBABILITIES), level=1.0).best_draft_probability(1.0, 1) == (1.0, pytest.approx(2 / 11))


def test_a_draft_that_costs_more_than_it_gives_is_never_made() -> None:
    dear = made([a * 0.7 for a in DRAFT_PROBABILITIES], level=8.0)  # a pass takes 10 and a token comes with it
    assert dear.best_draft_probability(1.0, 1) == (0.0, pytest.approx(0.1))


def test_between_them_lies_the_best_of_a_concave_curve() -> None:
    """With A(a) = min(a, 0.5) what is drafted beyond a half is never accepted."""
    covered = [min(a, 0.5) for a in DRAFT_PROBABILITIES]
    assert made(covered, level=4.0).best_draft_probability(1.0, 1) == (0.5, pytest.approx(1.5 / (0.5 * 10 + 0.5 * 14)))


def test_many_rows_hardly_save_a_pass() -> None:
    """One row that drafts makes all wait for its pass, so with many rows a draft is made always or never."""
    covered = [min(a, 0.5) + 0.1 * a for a in DRAFT_PROBABILITIES]
    assert made(covered, level=2.0).best_draft_probability(1.0, 1)[0] == 0.5
    assert made(covered, level=2.0, rows=16).best_draft_probability(1.0, 16)[0] in (0.0, 1.0)
