"""Costs explain the seconds that they are fitted to, and are sensible where little is known."""

import pytest
from plans import costs, parts

from multidraft.autotune.costs import Costs, Curve, fitted, reads_of, tree_named
from multidraft.autotune.tuner import FIRST, TREES

REAL = Costs(Curve((1, 8, 32), (9.0, 12.0, 30.0)), Curve((1, 2), (1.5, 1.7)), 0.4, 0.8, 0.05)


def test_seconds_of_trees_come_back() -> None:
    found = fitted({name: [parts(REAL, tree_named(name))] * 3 for name in TREES})
    for name in (*TREES, "2x1", "3x1x1x1"):
        assert found.of_tree(tree_named(name)) == pytest.approx(REAL.of_tree(tree_named(name)), rel=0.02)


def test_the_first_steps_are_enough_for_a_guess() -> None:
    found = fitted({name: [parts(REAL, tree_named(name))] for name in FIRST})
    for name in TREES:
        assert found.of_tree(tree_named(name)) == pytest.approx(REAL.of_tree(tree_named(name)), rel=0.25)


def test_medians_forget_an_outlier_and_no_pass_becomes_cheaper_with_more_tokens() -> None:
    noisy = {"": [(0.0, 10.0, 0.0)] * 3, "1": [(1.0, 9.0, 0.0), (1.0, 900.0, 0.0), (1.0, 9.5, 0.0)]}
    assert fitted(noisy).target(2) == 10.0


def test_nothing_costs_less_than_nothing() -> None:
    strange = {"": [(0.0, 10.0, 5.0)], "1": [(3.0, 10.0, 5.0)], "1x1x1": [(2.0, 10.0, 1.0)], "4x1": [(1.0, 10.0, 0.5)]}
    found = fitted(strange)
    assert min(found.level(1), found.level(2) - found.level(1), found.step, found.node) >= 0


def test_more_rows_are_as_many_tokens_in_one() -> None:
    double = REAL.scaled(2.0)
    assert double.target(4) == REAL.target(8)
    assert double.level(1) == REAL.level(2)
    assert double.plain == 2 * REAL.plain


def test_curves_are_flat_before_the_first_point_and_go_on_beyond_the_last() -> None:
    line = Curve((2, 4), (1.0, 2.0))
    assert (line(1), line(3), line(6)) == (1.0, 1.5, 3.0)
    assert costs(10.0, 2.0, 0.5).of_tree(tree_named("1x1")) == pytest.approx(10 + 2 * 0.5 + 2 * 2.0)
    assert reads_of(tree_named("2/2,1")) == (1, 2)
