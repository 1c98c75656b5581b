"""What is learnt while decoding: an exponent of the chance to miss."""

import pytest
import torch

from multidraft.planning.ease import Ease


def test_what_was_predicted_needs_no_correction() -> None:
    ease = Ease()
    for _ in range(100):
        ease.add(0.7, 0.7, 1.0)
    assert ease.exponent == pytest.approx(1.0, abs=0.02)
    assert ease.belief.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(("exponent", "low", "high"), [(0.3, 0.25, 0.45), (2.0, 1.3, 2.2)])
def test_another_text_is_believed_after_some_dozen_nodes(exponent: float, low: float, high: float) -> None:
    ease, claimed = Ease(), 1 - 0.3**exponent
    assert ease.exponent == pytest.approx(1.0)
    found = []
    for _ in range(61):
        ease.add(claimed, 0.7, 1.0)
        found.append(ease.exponent)
    assert low < found[60] < high
    assert abs(found[60] - exponent) < abs(found[20] - exponent) < abs(found[0] - exponent) < abs(1 - exponent)


def test_chance_hardly_moves_it() -> None:
    """Of 300 drafts that come or do not, by coins: with a mean of 20 nodes g would stray by a third."""
    ease, coins = Ease(), torch.rand(300, generator=torch.Generator().manual_seed(0)) < 0.8
    found = []
    for coin in coins.tolist():
        ease.add(float(coin), 0.8, 1.0)
        found.append(abs(ease.exponent - 1))
    assert sum(found) / len(found) < 0.1


def test_nodes_count_by_the_weight_with_which_they_are_entered() -> None:
    ease = Ease()
    ease.add(0.7, 0.7, 1.0)
    before = ease.exponent
    ease.add(0.0, 0.7 * 1e-9, 1e-9)
    assert ease.exponent == pytest.approx(before, abs=1e-3)


def test_a_single_draft_may_claim_more_than_its_weight() -> None:
    """One node in ten has a draft that claims all: the mean is as predicted, and so nothing is to be learnt."""
    ease = Ease()
    for turn in range(300):
        ease.add(float(turn % 10 == 0), 0.1, 0.125)
    assert ease.exponent == pytest.approx(1.0, abs=0.1)


def test_a_change_is_believed_after_some_dozen_nodes() -> None:
    ease = Ease()
    for claimed in [0.7] * 200 + [1.0] * 20:
        ease.add(claimed, 0.7, 1.0)
    assert ease.exponent > 1.5


def test_certainties_stay_finite() -> None:
    ease = Ease()
    for _ in range(1000):
        ease.add(1.0, 1.0, 1.0)
        ease.add(1.0 + 1e-15, 1.0, 1.0)
    assert 0.01 < ease.exponent < 40
    for _ in range(1000):
        ease.add(0.0, 1.0, 1.0)
    assert 0.01 < ease.exponent < 0.1


def test_in_a_batch_the_text_may_change_as_quickly_as_alone() -> None:
    """Certain of something, a batch forgets it after as many nodes of every row that tell nothing."""
    found = []
    for rows in (1, 4):
        ease = Ease()
        for _ in range(40 * rows):
            ease.add(1.0, 0.7, 1.0, rows)
        sure = ease.exponent
        for _ in range(40 * rows):
            ease.add(0.0, 0.7e-9, 1e-9, rows)
        found.append(ease.exponent)
        assert ease.exponent < 0.8 * sure
    assert found[1] == pytest.approx(found[0], rel=0.3)
