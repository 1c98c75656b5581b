"""Whether growing pays: two speeds over the same places, with the noise of their difference."""

import pytest
import torch
from plans import costs, plan, predictions

import multidraft as md
from multidraft.autotune import comparing
from multidraft.autotune.comparing import STEPS, best_of, gain_of, spread, with_growth
from multidraft.autotune.costs import Costs, CostsByRows
from multidraft.autotune.pair_plan import AtTemperature
from multidraft.autotune.subject import Subject
from multidraft.autotune.trials import Trial
from multidraft.models.table import TableModel, random_table

COSTS = CostsByRows((1,), (costs(10.0, 1.0, 0.5),))


def trial(tokens: float, levels: int, nodes: int) -> Trial:
    return Trial(tokens, (1,) * levels, nodes, levels, 0)


def test_the_gain_is_tokens_over_time_with_what_looking_takes() -> None:
    found = [(trial(2.0, 2, 2), trial(3.0, 4, 4))] * 5
    one = COSTS.looking(0.25).at(1)
    fixed, grown = 2.0 / (10 + 2 + 1), 3.0 / (10 + 4 + 2 + 4 * 0.25)
    assert gain_of(found, one) == (pytest.approx(grown / fixed), pytest.approx(0.0))


def test_its_noise_is_that_of_places_which_both_have_in_common() -> None:
    """Places that are easy for both make no noise; those that are for one do, as for a mean of so many."""
    common = [(trial(float(tokens), 1, 1), trial(float(tokens), 1, 1)) for tokens in (1, 2, 3)]
    assert gain_of(common, COSTS.at(1)) == (pytest.approx(1.0), pytest.approx(0.0))
    apart = [(trial(2.0, 1, 1), trial(tokens, 1, 1)) for tokens in (1.0, 3.0)]
    assert gain_of(apart, COSTS.at(1))[1] == pytest.approx(0.5)
    assert gain_of(apart * 4, COSTS.at(1))[1] == pytest.approx(0.5 * (2 / 8 * 8 / 7 / 2) ** 0.5, rel=1e-6)


def known() -> AtTemperature:
    """Filled up to as many drafts as trees that grow may make."""
    [own] = plan({}).acceptance
    filled = predictions(own.rates)
    return AtTemperature(1.0, filled.rates, own.drafts, own.tempers, own.covered, filled.confidence)


@torch.inference_mode()
def test_both_are_tried_after_real_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "TEXTS", 2)
    target, draft = (TableModel(random_table(4, 3, seed, 0.5), 4) for seed in (1, 2))
    subject = Subject(target, draft, [[0], [1]], md.scheme("anchored:lorenz"), "deferred")
    found = with_growth(subject, [[0], [1]], known(), COSTS)
    assert found.growing > 0
    assert found.noise > 0
    assert best_of(found, COSTS.at(1)).name != ""


@torch.inference_mode()
@pytest.mark.parametrize(("gain", "rounds"), [(0.85, 1), (0.95, 3), (1.15, 3), (1.25, 1)])
def test_more_places_are_tried_while_the_gain_is_in_doubt(
    gain: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To forgo growing takes a gain below one by its noise, to take it one above by twice as much."""
    seen: list[int] = []

    def told(found: list[tuple[Trial, Trial]], costs: Costs) -> tuple[float, float]:
        seen.append(len(found))
        return gain, 0.1

    monkeypatch.setattr(comparing, "TEXTS", 1)
    monkeypatch.setattr(comparing, "gain_of", told)
    target, draft = (TableModel(random_table(4, 3, seed, 0.5), 4) for seed in (1, 2))
    subject = Subject(target, draft, [[0], [1]], md.scheme("anchored:lorenz"), "deferred")
    found = with_growth(subject, [[0], [1], [2]], known(), COSTS)
    assert seen == [STEPS * turn for turn in range(1, rounds + 1)]
    assert (found.growing, found.noise) == (gain, 0.1)


def test_the_first_texts_come_from_everywhere() -> None:
    texts = [[place] for place in range(11)]
    first, whole = spread(texts)[:5], spread(texts)
    assert first == [[0], [2], [4], [6], [8]]
    assert sorted(whole) == texts
