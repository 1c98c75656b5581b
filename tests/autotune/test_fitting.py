"""Curves of acceptance, where the truth is known."""

import numpy as np
import pytest
import torch

import multidraft as md
from multidraft.autotune.fitting import confidence_of, curve
from multidraft.autotune.positions import Positions, rates_of
from multidraft.autotune.predictions import COUNTS, Predictions, class_of, logistic

RANDOM = np.random.default_rng(0)


def test_a_curve_is_found_again() -> None:
    truth = (0.5, 1.2, -0.8)
    seen = RANDOM.normal(size=(2000, 2))
    rates = np.array([logistic(truth, *pair) for pair in seen])
    assert curve(seen, rates, np.ones(2000)) == pytest.approx(truth, abs=0.02)


def test_where_confidence_tells_nothing_slopes_are_small() -> None:
    seen = RANDOM.normal(size=(200, 2))
    _, first, second = curve(seen, (RANDOM.random(200) < 0.7).astype(float), np.ones(200))
    assert max(abs(first), abs(second)) < 0.5  # three standard errors


def positions(count: int, likeness: float) -> Positions:
    """Drafts of all degrees of confidence; the target is the draft itself, or a single token, by turns of a coin."""
    generator = torch.Generator().manual_seed(0)
    draft = (6 * torch.rand(count, 1, generator=generator) * torch.rand(count, 20, generator=generator)).softmax(-1)
    same = torch.rand(count, 1, generator=generator) < likeness
    target = torch.where(same, draft, torch.full_like(draft, 1 / 20))
    return Positions(list(target), list(draft), list(draft), [(0, 1, 1.0, 1.0)] * count)


def learnt(likeness: float) -> Predictions:
    scheme, found = md.scheme("anchored:lorenz"), positions(60, likeness)
    return Predictions(rates_of(scheme, found, max(COUNTS), [1.0] * 9), confidence_of(scheme, found, [1.0] * 9))


def test_a_draft_that_is_the_target_is_always_accepted() -> None:
    found = learnt(1.0)
    assert found.acceptance[0, class_of(0.5, 0.2), 1] > 0.95
    assert sum(found.confidence.frequency) == pytest.approx(1)


def test_more_drafts_are_never_predicted_to_be_accepted_less() -> None:
    found = learnt(0.3)
    assert (np.diff(found.acceptance, axis=2) >= 0).all()
    assert (found.flat().acceptance == found.flat().acceptance[:, :1]).all()
    assert found.flat().acceptance[1, 0, 2] == pytest.approx(found.rates.acceptance[2][1])


def test_nodes_count_as_often_as_walks_pass_them() -> None:
    """Where walks hardly ever pass, drafts are never accepted."""
    scheme, found = md.scheme("anchored:lorenz"), positions(60, 1.0)
    for place in range(0, 60, 2):
        found.targets[place], found.drafts[place] = torch.eye(20)[0], torch.eye(20)[1]
        found.seen[place] = (0, 1, 1e-9, 0.0)
    curves = confidence_of(scheme, found, [1.0] * 9)
    assert Predictions(rates_of(scheme, found, max(COUNTS), [1.0] * 9), curves).acceptance[0, 20, 1] > 0.9
