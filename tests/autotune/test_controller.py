"""Auto: it takes the tree that pays, learns from its own steps, and reads no clock unless it may."""

import itertools
import logging
import random
import time
from collections import Counter

import pytest
import torch
from decoded import WANTED, accepted, always, drafted, records
from plans import costs, profile, rates

from multidraft.autotune import controller
from multidraft.autotune.controller import Auto, Limits
from multidraft.autotune.profile import FIRST, Profile
from multidraft.errors import AdviceError
from multidraft.models.table import TableModel, random_table

pytestmark = pytest.mark.usefixtures("unchecked")  # hints are checked in the other files; runs here are long
RIGHT, WRONG = always(lambda _: WANTED), always(lambda _: WANTED.roll(1))


def tables(vocabulary: int = 3, alike: float = 0.7) -> tuple[TableModel, TableModel]:
    one, other = (TableModel(random_table(vocabulary, 4, seed, alike), vocabulary) for seed in (1, 2))
    return one, other


def test_a_draft_that_is_never_right_is_given_up_and_probed_with_growing_pauses() -> None:
    found = list(records(Auto(profile(), 1.0), RIGHT, WRONG, 500))
    assert accepted(found) == 0
    assert 1 <= drafted(found[:300]) <= 100
    assert drafted(found[300:]) <= 40


def test_a_draft_that_has_become_good_is_used_again() -> None:
    """For 200 tokens it is never right, then always."""
    late = always(lambda length: WANTED.roll(1) if length < 200 else WANTED)
    assert accepted(list(records(Auto(profile(), 1.0), RIGHT, late, 450))) > 300


def test_a_perfect_draft_is_drafted_deep() -> None:
    found = list(records(Auto(profile(found=rates(0.5)), 1.0), RIGHT, RIGHT, 120))
    assert Counter(name for record in found[60:] for name in record.names).most_common(1)[0][0].count("x") >= 5


def run_with_a_clock(policy: Auto, monkeypatch: pytest.MonkeyPatch, seed: int) -> list[list[str]]:
    """The trees of a run while a clock shows anything."""
    chance = random.Random(seed)
    ticks = itertools.accumulate(chance.paretovariate(0.5) for _ in itertools.count())
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    return [record.names for record in records(policy, RIGHT, RIGHT, 100)]


def test_with_a_plan_a_seed_repeats_a_run_whatever_the_clock_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [run_with_a_clock(Auto(profile(), 1.0), monkeypatch, seed) for seed in (0, 1)]
    assert runs[0] == runs[1]


def test_while_it_measures_the_clock_decides(saved: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the test before, which shows that this one would notice."""
    runs = [run_with_a_clock(Auto(Profile({}), 1.0, budget=1e6), monkeypatch, seed) for seed in (0, 1)]
    assert runs[0] != runs[1]


def test_limits_hold() -> None:
    policy = Auto(profile(found=rates(0.99)), 1.0, Limits(nodes=3, depth=2))
    found = list(records(policy, *tables(), 80))
    assert policy.most_nodes == 4
    assert max(len(tree) for record in found for tree in record.trees) <= 4
    assert max(max(tree.depths) for record in found for tree in record.trees) <= 2


@pytest.mark.parametrize(
    "text", ["auto,nodes=0", "auto,width=3", "auto nodes=3", "automatic", "auto,nodes=99999", "auto,nodes=5,nodes=6"]
)
def test_strange_limits_are_refused(text: str) -> None:
    with pytest.raises(AdviceError, match="write auto, or auto,nodes=24,depth=6"):
        Limits.parse(text)


@pytest.mark.parametrize(("gain", "drafts"), [(1.01, False), (1.05, True)])
def test_drafts_must_win_by_a_margin(gain: float, drafts: bool) -> None:
    one, plain = 0.7, 10.0
    level = plain * (1 + one) / gain - plain
    policy = Auto(profile(by_rows={1: costs(plain, level)}, found=rates(one, second=0.0)), 1.0, Limits(1, 1))
    policy.begin(1)
    assert policy.rests != drafts


def test_in_a_batch_the_costs_of_its_rows_decide() -> None:
    policy = Auto(profile(by_rows={1: costs(), 4: costs(node=50.0)}), 1.0)
    policy.begin(1)
    assert not policy.rests
    policy.begin(4)
    assert policy.rests


def test_a_prompt_that_the_draft_model_would_have_to_read_is_a_price() -> None:
    """A hundred tokens of a prompt for each new one: reading them takes more than drafts give."""
    policy = Auto(profile(by_rows={1: costs(more=0.5)}), 1.0)
    policy.foresee(1, 100, 1)
    assert policy.rests
    policy.foresee(1, 1, 100)
    assert not policy.rests


def test_what_is_expected_is_what_comes() -> None:
    """Drafts that are right half of the time, by the profile and in truth: tokens a step as expected, within 8 %.

    Some 600 steps of about 2 tokens with a standard deviation below 1 have a standard error below 2 %.
    """
    half = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    target, draft = always(lambda _: half), always(lambda _: WANTED)
    policy = Auto(profile(found=rates(0.5, second=0.0)), 1.0, Limits(4, 4))
    found = list(records(policy, target, draft, 600))
    expected = sum(record.expected.tokens for record in found if record.expected)
    assert sum(len(emitted.tokens) for record in found for emitted in record.emitted) == pytest.approx(
        expected, rel=0.08
    )


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Profiles are not written, only noted."""
    found: list[str] = []
    monkeypatch.setattr(controller, "save", lambda made: found.append(made.as_json()))
    controller.announced.cache_clear()
    return found


def test_a_new_pair_begins_at_once_and_its_own_steps_are_timed(
    saved: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    made = Profile({"target": "new"})
    policy = Auto(made, 1.0, budget=1e6)
    with caplog.at_level(logging.WARNING, "multidraft"):
        found = list(records(policy, *tables(), 120))
    policy.finish()
    assert [record.names[0] for record in found[: 2 * FIRST]] == [""] * FIRST + ["1x6"] * FIRST
    assert sum(len(runs) for runs in made.samples[1].values()) > 10
    assert made.acceptance[1.0].weight.sum() > 20
    assert Profile.from_json(saved[-1]).spent == pytest.approx(made.spent, abs=1e-3)
    assert caplog.text.count("for at most 1e+06 s, once; kept in") == 1
    assert "tune_budget=0" in caplog.text


def test_without_a_budget_only_the_first_steps_are_timed(saved: list[str], caplog: pytest.LogCaptureFixture) -> None:
    made = Profile({})
    list(records(Auto(made, 1.0, budget=0.0), *tables(), 60))
    assert sum(len(runs) for runs in made.samples[1].values()) == 2 * FIRST
    assert not caplog.text


def test_where_a_budget_is_spent_nothing_more_is_timed(saved: list[str]) -> None:
    made = profile(spent=1.0)
    before = made.as_json()
    list(records(Auto(made, 1.0, budget=1.0), *tables(), 40))
    assert made.as_json() == before


def test_rows_that_come_are_the_ones_that_are_timed(saved: list[str]) -> None:
    made = Profile({})
    list(records(Auto(made, 1.0, budget=1e6), *tables(), 60, rows=4))
    assert {*made.samples} == {4}


def test_where_drafts_do_not_pay_it_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    controller.no_drafts_best.cache_clear()
    with caplog.at_level(logging.WARNING, "multidraft"):
        for draft in (RIGHT, WRONG, WRONG):  # the first is good
            policy = Auto(profile(), 1.0)
            list(records(policy, RIGHT, draft, 300))
            policy.finish()
    assert caplog.text.count("no drafts are best here") == 1
    assert "--draft none" in caplog.text
