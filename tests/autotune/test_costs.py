"""Costs explain the seconds that they are fitted to, and are sensible where little is known."""

import pytest
from plans import TIMED, costs, timed

from multidraft.autotune.costs import Costs, Curve, Timed, fitted, reads_of
from multidraft.decoding.tree import NO_DRAFTS, Tree

REAL = Costs(Curve((1, 8, 32), (9.0, 12.0, 30.0)), Curve((1, 2), (1.5, 1.7)), 0.4, 0.8, 0.05)


def samples(names: tuple[str, ...]) -> dict[str, list[Timed]]:
    return {name: [timed(REAL, tree_of(name))] * 3 for name in names}


def tree_of(name: str) -> Tree:
    return Tree.parse(name) if name else NO_DRAFTS


def test_seconds_of_trees_come_back() -> None:
    found = fitted(samples(TIMED))
    for name in (*TIMED, "2x1", "3x1x1x1"):
        assert found.of_tree(tree_of(name)) == pytest.approx(REAL.of_tree(tree_of(name)), rel=0.03)


def test_the_first_steps_are_enough_for_a_guess() -> None:
    found = fitted(samples(("", "1x6")))
    for name in TIMED:
        assert found.of_tree(tree_of(name)) == pytest.approx(REAL.of_tree(tree_of(name)), rel=0.25)


def test_an_outlier_is_forgotten_and_no_pass_becomes_cheaper_with_more_tokens() -> None:
    plain, drafted = Timed(0, 0, 0, 0, 10.0, 0), [Timed(1, 1, 1, 1.0, seconds, 0) for seconds in (9.0, 900.0, 9.5)]
    found = fitted({"0/0": [plain] * 3, "1/1": drafted})
    assert found.target(1) == found.target(2) == pytest.approx(9.5)


def test_nothing_costs_less_than_nothing() -> None:
    strange = {(0, 0, 0): (0.0, 5.0), (1, 1, 1): (3.0, 5.0), (3, 3, 3): (2.0, 1.0), (2, 5, 8): (1.0, 0.5)}
    found = fitted({str(work): [Timed(*work, draft, 10.0, rest)] for work, (draft, rest) in strange.items()})
    assert min(found.level(1), found.level(2) - found.level(1), found.step, found.node) >= 0


def test_drafting_without_a_model_is_work_of_our_own() -> None:
    found = fitted({"0/0": [Timed(0, 0, 0, 0.1, 10.0, 0.3)], "0/4": [Timed(0, 0, 4, 0.5, 12.0, 0.7)]})
    assert (found.plain, found.level(1)) == (pytest.approx(0.4), 0)
    assert found.seconds([], 4) == pytest.approx(13.2, rel=0.01)


def test_the_first_draft_may_be_dearer_than_others() -> None:
    price = Costs(Curve((1, 2, 30), (10.0, 15.0, 43.0)), Curve((1,), (0.0,)), 0.5, 0.7, 0.0)
    assert (price.one_more(), price.entry()) == (pytest.approx(1.0), pytest.approx(5 - 1 + 0.2))


def test_more_rows_are_as_many_tokens_in_one() -> None:
    double = REAL.scaled(2.0)
    assert double.target(4) == REAL.target(8)
    assert double.level(1) == REAL.level(2)
    assert double.plain == 2 * REAL.plain


def test_curves_are_flat_before_the_first_point_and_go_on_beyond_the_last() -> None:
    line = Curve((2, 4), (1.0, 2.0))
    assert (line(1), line(3), line(6)) == (1.0, 1.5, 3.0)
    assert costs(10.0, 2.0, 0.5).of_tree(Tree.parse("1x1")) == pytest.approx(10 + 2 * 0.5 + 2 * 2.0)
    assert reads_of(Tree.parse("2/2,1")) == (1, 2)
