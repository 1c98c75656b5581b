"""What is learnt while decoding: an exponent of the chance to miss."""

import pytest

from multidraft.planning.averages import Ease


def test_what_was_predicted_needs_no_correction() -> None:
    ease = Ease(12.0)
    for _ in range(100):
        ease.add(0.7, 0.7, 1.0)
    assert ease.exponent == pytest.approx(1.0)


@pytest.mark.parametrize("exponent", [0.3, 2.0])
def test_the_exponent_is_found_again_and_its_prior_fades(exponent: float) -> None:
    ease, claimed = Ease(12.0), 1 - 0.3**exponent
    assert ease.exponent == 1.0
    found = []
    for _ in range(300):
        ease.add(claimed, 0.7, 1.0)
        found.append(ease.exponent)
    assert found[-1] == pytest.approx(exponent, rel=1e-3)
    assert abs(found[-1] - exponent) < abs(found[10] - exponent) < abs(found[0] - exponent) < abs(1 - exponent)


def test_nodes_count_by_the_weight_with_which_they_are_entered() -> None:
    ease = Ease(12.0)
    ease.add(0.7, 0.7, 1.0)
    ease.add(0.0, 0.7 * 1e-9, 1e-9)
    assert ease.exponent == pytest.approx(1.0)


def test_a_change_is_believed_after_some_dozen_nodes() -> None:
    ease = Ease(12.0)
    for claimed in [0.7] * 200 + [1.0] * 60:
        ease.add(claimed, 0.7, 1.0)
    assert ease.exponent > 1.5


def test_certainties_stay_finite() -> None:
    ease = Ease(12.0)
    for _ in range(1000):
        ease.add(1.0, 1.0, 1.0)
    assert 0.1 < ease.exponent < 10


def test_in_a_batch_a_change_is_believed_after_as_many_nodes_of_every_row() -> None:
    found = []
    for rows in (1, 4):
        ease = Ease(12.0)
        for claimed in [0.7] * 200 * rows + [1.0] * 10 * rows:
            ease.add(claimed, 0.7, 1.0, rows)
        found.append(ease.exponent)
    assert found[1] == pytest.approx(found[0], rel=1e-3)
    assert found[0] > 1.1
