"""What is learnt while decoding: an exponent of the chance to miss."""

import pytest
import torch

from multidraft.autotune.ease import Ease


def told(*claims: float, predicted: float = 0.7, weight: float = 1.0) -> Ease:
    """What is believed after nodes with these claims, asked for after every fourth."""
    ease = Ease()
    for node, claimed in enumerate(claims):
        ease.add(claimed, predicted * weight, weight)
        if node % 4 == 3:
            assert ease.belief.sum() == pytest.approx(1.0)
    return ease


def test_what_was_predicted_needs_no_correction() -> None:
    assert told(*[0.7] * 100).exponent == pytest.approx(1.0, abs=0.02)


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
    claims = [float(turn % 10 == 0) for turn in range(300)]
    assert told(*claims, predicted=0.8, weight=0.125).exponent == pytest.approx(1.0, abs=0.1)


def test_a_change_is_believed_after_some_dozen_nodes() -> None:
    assert told(*[0.7] * 200, *[1.0] * 20).exponent > 1.5


def test_certainties_stay_finite() -> None:
    sure = [1.0, 1.0 + 1e-15] * 1000
    assert 1 < told(*sure, predicted=1.0).exponent < 40
    assert 0.01 < told(*sure, *[0.0] * 100, predicted=1.0).exponent < 0.1


def test_in_a_batch_the_text_may_change_as_quickly_as_alone() -> None:
    """Certain of something, a batch forgets it after as many nodes of every row that tell nothing."""
    found = []
    for rows in (1, 4):
        ease = Ease()
        for claimed, predicted, weight in [(1.0, 0.7, 1.0)] * 40 * rows + [(0.0, 0.7e-9, 1e-9)] * 40 * rows:
            ease.add(claimed, predicted, weight, rows)
            found.append(ease.exponent)
    alone, batch = found[:80], found[80:]
    assert alone[79] < 0.8 * alone[39]
    assert batch[319] < 0.8 * batch[159]
    assert batch[319] == pytest.approx(alone[79], rel=0.3)
