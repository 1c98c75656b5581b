"""Look-ups rest where they do not pay, come back where they do, and only where they take a part of a step."""

import pytest
import torch

import multidraft as md
from multidraft.autotune.estimates import Timed
from multidraft.autotune.growing import Growing
from multidraft.autotune.lookup_pauses import FIRST_PAUSE, MAX_PAUSE, MIN_TRIED_STEPS, LookupPauses
from multidraft.autotune.plans import Profile
from multidraft.models.ensemble import LookupThenModel
from multidraft.models.ngram import Lookup
from multidraft.models.table import TableModel


def steps_with_look_ups(tokens: list[float], plain_tokens: float = 1.07) -> list[bool]:
    """Which steps look up, where step i would give so many tokens."""
    pauses, is_looked_up = LookupPauses(), list[bool]()
    for step_tokens in tokens:
        is_looked_up.append(not pauses.begin_step())
        if is_looked_up[-1]:
            pauses.observe(step_tokens, plain_tokens)
    return is_looked_up


def test_look_ups_that_find_nothing_rest_longer_and_longer():
    is_looked_up = steps_with_look_ups([1.0] * 2000)
    assert all(is_looked_up[:MIN_TRIED_STEPS])
    assert not any(is_looked_up[MIN_TRIED_STEPS : MIN_TRIED_STEPS + FIRST_PAUSE])
    assert sum(is_looked_up) < 2000 * 0.06


def test_look_ups_that_pay_never_rest():
    assert all(steps_with_look_ups([1.0, 1.2] * 500))


def test_a_text_that_is_copied_later_is_found():
    is_looked_up = steps_with_look_ups([1.0] * 600 + [2.0] * 600)
    assert all(is_looked_up[600 + MAX_PAUSE + 2 * MIN_TRIED_STEPS :])


def test_what_a_step_takes_without_look_ups():
    profile = Profile({})
    for nodes, seconds in ((0, 4.0), (1, 5.0)):
        for _ in range(9):
            profile.add(1, Timed(0, 0, nodes, 0.5, seconds, 0.5))
    assert profile.costs(1).plain == pytest.approx(5.0)
    assert profile.share_beside_drafting(1) == pytest.approx(0.9)
    assert Profile({}).share_beside_drafting(1) == 1


@pytest.mark.parametrize("is_pausing", [False, True])
@pytest.mark.parametrize("model_pays", [None, False, True])  # None: look-ups without a model
def test_a_run_whose_look_ups_rest_drafts_nothing(monkeypatch, is_pausing: bool, model_pays: bool | None):
    monkeypatch.setattr(LookupPauses, "begin_step", lambda self: is_pausing)
    monkeypatch.setattr(
        Growing, "model_pays", property(lambda self: model_pays, lambda self, value: None), raising=False
    )
    target, prompt = TableModel(lambda prefix: torch.eye(9)[(prefix[-1] + 1) % 9], 9), [*range(9), *range(9)]
    draft = Lookup(9) if model_pays is None else LookupThenModel([Lookup(9), target])
    rows, info = md.generate(target, draft, [prompt], max_new_tokens=24, tune_budget=0)
    assert rows[0].tolist() == [place % 9 for place in range(24)]
    assert (info.nodes == 0) == (is_pausing and not model_pays)
