"""What is measured of a pair comes back: acceptance from verdicts, seconds from steps, all of it from the disk."""

import json
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from decoded import CERTAIN_TOKEN, constant_model, records
from multidraft_research.tuning import measuring
from plans import TIMED, made_up, profile, rates, seen, timed

import multidraft as md
from multidraft.autotune import plans
from multidraft.autotune.estimates import CLASSES, DEFAULT, AcceptanceTracker, Costs, Timed, Work, fit_costs
from multidraft.autotune.plans import MIN_STEPS, MeasuredPair, Profile
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.tree import NO_DRAFTS, LevelScores, NodeLaw, TokenTree, Tree
from multidraft.errors import AdviceError, say_once

REAL = Costs(plain=9.0, first=11.0, node=0.3, level=1.4, read=0.2)


def heard(place: int, accepted: float, nodes: float = 1.0, drafts: int = 1) -> AcceptanceTracker:
    """Nodes of one confidence."""
    tracker = AcceptanceTracker()
    tracker.add((drafts, place), nodes, [accepted * nodes])
    tracker.roots[place] += nodes
    return tracker


def test_rates_come_back_from_what_they_claim() -> None:
    true = replace(rates(0.6, 0.4), confidence=np.linspace(0.5, 2.0, CLASSES))
    for fitted, expected, close in (
        (seen(true).rates(rounds=8), true, 0.03),
        (AcceptanceTracker().rates(), DEFAULT, 0),
    ):
        assert fitted.table == pytest.approx(expected.table, abs=close)
        assert fitted.shares == pytest.approx(expected.shares, abs=1e-6)


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.9, 1.0])
def test_one_number_of_drafts_tells_of_the_others(rate: float) -> None:
    """Only single drafts are seen; more are then believed to be as much easier or harder than assumed, never less."""
    fitted = heard(2, rate, 2000).rates()
    assert fitted.average[1] == pytest.approx(rate, abs=0.02)
    assert (fitted.average[3] > DEFAULT.average[3]) == (rate > DEFAULT.average[1])
    assert (np.diff(fitted.missing) <= 0).all()
    assert ((fitted.table >= 0) & (fitted.table <= 1)).all()


def test_the_average_is_over_confidences_as_often_as_they_come() -> None:
    """It was that of middling confidence, whatever came: too high by a quarter where a draft model is seldom sure."""
    tracker = heard(0, 0.3, 900.0)
    tracker.add((1, 4), 100.0, [100.0])
    tracker.roots[4] += 100
    assert tracker.rates(rounds=4).average[1] == pytest.approx(0.37, abs=0.02)


def test_a_node_counts_by_its_weight_and_fades() -> None:
    """A node that the walk enters with a tenth says a tenth."""
    tracker, other = heard(2, 1.0, 0.1), heard(2, 0.1, 100)
    tracker.add((1, 2), 0.9, [0.0])
    assert tracker.rates(DEFAULT, 1e-9).by_class[2][1] == pytest.approx(0.1, abs=0.01)
    before = other.rates().by_class[2][1]
    other.fade(0.01)
    assert before < other.rates().by_class[2][1] < DEFAULT.by_class[2][1]


def test_what_a_child_claims_is_counted_for_its_place_among_those_drawn() -> None:
    """The target wants what the draft model says second: the first child claims nothing, and verdicts leave it out."""
    tracker, policy = AcceptanceTracker(), StaticTree(Tree.parse("2"))
    target_law, draft_law = (torch.tensor(law, dtype=torch.float64) for law in ([0.0, 1.0, 0.0], [0.6, 0.3, 0.1]))
    for record in records(
        policy, constant_model(lambda _: target_law), constant_model(lambda _: draft_law), 50, temperature=0.0
    ):
        tracker.observe(record)
    assert tracker.rates().shares[2, :2] == pytest.approx([0.1, 0.9], abs=0.1)


class Undecided(StaticTree):
    """Roots are read, and nothing is drafted."""

    def counts(self, trees: list[TokenTree], depth: int) -> list[dict[int, int]]:
        return [{} for _ in trees]


@pytest.mark.parametrize("walk", ["commit", "deferred"])
def test_a_root_that_was_read_and_drafted_nothing_counts(walk: str) -> None:
    """A draft model that is seldom sure would seem to be sure always, if only steps that drafted counted."""
    tracker, law = AcceptanceTracker(), constant_model(lambda _: torch.tensor([0.3, 0.7, 0.0], dtype=torch.float64))
    for record in records(Undecided(Tree.parse("1")), law, law, 8, walk=walk):
        tracker.observe(record)
    assert tracker.roots.tolist() == [0, 0, 0, 8, 0]
    assert tracker.nodes == 0


def test_no_plan_gets_more_temperatures_than_are_read_again() -> None:
    made_profile = profile(temperatures=tuple(number / 10 for number in range(plans.MAX_TEMPERATURES)))
    assert made_profile.at(99.0) is made_profile.at((plans.MAX_TEMPERATURES - 1) / 10)
    assert Profile.from_json(made_profile.as_json()).acceptance.keys() == made_profile.acceptance.keys()


def test_costs_of_fewer_rows_stay_above_nothing() -> None:
    """Sixteen rows whose drafts are dear: at one row a plain step would have taken less than no time."""
    scaled = Costs(10.0, 12.0, 11.0, 1.0, 0.1).scale_rows(1 / 16)
    assert scaled.plain == 10.0 / 16
    assert scaled.first > scaled.plain


def test_expected_tokens_are_sums_over_paths() -> None:
    assert rates(0.6, second=0.5).tokens(Tree.parse("2x1")) == pytest.approx(1 + 0.6 + 0.2 + 0.36 + 0.12)


def test_what_was_counted_says_how_likely_it_is_right_and_is_trusted_as_far_as_it_was() -> None:
    partial, whole = (
        NodeLaw(np.array([7]), np.ones(1), LevelScores(torch.tensor([likely]).log(), is_partial=True))
        for likely in ([0.5, 0.25], [0.9, 0.1])
    )
    assert DEFAULT.of(partial)[:4] == pytest.approx([0, 0.5, 0.75, 0.75])
    assert AcceptanceTracker(counts=np.array([500.0, 1000.0])).rates().of(partial)[1] == pytest.approx(0.25, abs=0.01)
    assert DEFAULT.of(whole) == DEFAULT.by_class[4]


def work(name: str) -> Work:
    return Work.of_tree(Tree.parse(name) if name else NO_DRAFTS)


@pytest.mark.parametrize(("names", "close"), [(TIMED, 0.01), (("", "1x6"), 0.25)], ids=["all", "the first steps"])
def test_seconds_of_trees_come_back(names: tuple[str, ...], close: float) -> None:
    fitted = fit_costs({name: [timed(REAL, Tree.parse(name) if name else NO_DRAFTS)] * 3 for name in names})
    for name in (*TIMED, "2x1", "3x1x1x1"):
        assert fitted.seconds(work(name)) == pytest.approx(REAL.seconds(work(name)), rel=close)


PASSES = {1: 0.058, 3: 0.103, 7: 0.186, 15: 0.262}  # seconds by drafted nodes: sixteen tokens are a kernel's own number


@pytest.mark.parametrize(("runs", "exact"), [(3, True), (2, False)])
def test_passes_that_were_timed_often_enough_are_known_as_they_were(runs: int, exact: bool) -> None:
    groups = {f"0/{nodes}": [Timed(0, 0, nodes, 0.0, seconds, 0.0)] * runs for nodes, seconds in PASSES.items()}
    fitted = fit_costs({"0/0": [Timed(0, 0, 0, 0.0, 0.052, 0.0)] * 3} | groups)
    errors = [abs(fitted.seconds(Work(0, 0, nodes)) - seconds) for nodes, seconds in PASSES.items()]
    assert (max(errors) < 1e-12) is exact
    if exact:
        assert fitted.seconds(Work(0, 0, 11)) == pytest.approx((PASSES[7] + PASSES[15]) / 2)
        four = fitted.scale_rows(4.0)  # with one node in each of four rows the pass has the tokens of seven in one
        assert four.drafted_seconds(3) - four.drafted_seconds(1) == pytest.approx(
            fitted.drafted_seconds(15) - fitted.drafted_seconds(7)
        )


def test_an_outlier_is_forgotten_and_nothing_costs_less_than_nothing() -> None:
    plain, drafted = Timed(0, 0, 0, 0, 10.0, 0), [Timed(1, 1, 1, 1.0, spent, 0) for spent in (11.0, 900.0, 11.5)]
    assert fit_costs({"0/0": [plain], "1/1": drafted}).seconds(Work(1, 1, 1)) == pytest.approx(12.0, rel=0.02)
    strange = {(0, 0, 0): (0.0, 5.0), (1, 1, 1): (3.0, 5.0), (3, 3, 3): (2.0, 1.0), (2, 5, 8): (1.0, 0.5)}
    fitted = fit_costs(
        {str(done): [Timed(*done, draft, 10.0, rest_seconds)] for done, (draft, rest_seconds) in strange.items()}
    )
    assert min(fitted.plain, fitted.first, fitted.node, fitted.level, fitted.read) >= 0
    plain_costs = fit_costs({"0/0": [Timed(0, 0, 0, 0.1, 10.0, 0.3)], "0/4": [Timed(0, 0, 4, 0.5, 12.0, 0.7)]})
    assert plain_costs.plain == pytest.approx(10.4)
    assert plain_costs.level == plain_costs.read == 0  # no model was asked: that is our work
    assert plain_costs.seconds(Work(0, 0, 4)) == pytest.approx(13.2, rel=0.01)


def test_more_rows_are_as_many_tokens_in_one() -> None:
    """The pass over two tokens that the first draft makes dearer is then taken in any case."""
    double = REAL.scale_rows(2.0)
    assert (double.plain, double.first) == pytest.approx((REAL.first + REAL.node,) * 2)
    assert double.seconds(Work(1, 2, 3)) == pytest.approx(REAL.seconds(Work(1, 4, 7)))
    assert REAL.scale_rows(0.5).plain < REAL.plain


def test_plain_steps_with_a_nearer_number_of_rows_say_what_a_plain_step_takes() -> None:
    """Else sixteen rows are taken for as dear as the scaled costs of one row, and drafts are measured by that."""
    known_profile = profile(by_rows={1: REAL})
    for _ in range(MIN_STEPS):
        known_profile.add(8, Timed(0, 0, 0, 0.0, 3 * REAL.plain, 0.0))
    assert known_profile.costs(1).plain == pytest.approx(REAL.plain)
    assert known_profile.costs(2).plain == pytest.approx(REAL.scale_rows(2.0).plain, rel=0.01)
    assert known_profile.costs(8).plain == pytest.approx(3 * REAL.plain)
    scaled = REAL.scale_rows(8.0)
    assert known_profile.costs(8).first == pytest.approx(3 * REAL.plain + scaled.first - scaled.plain, rel=0.01)
    assert known_profile.costs(16).plain > 3 * REAL.plain


def test_measuring_meets_all_temperatures_with_all_prompts_and_trees(own_cache, monkeypatch) -> None:
    """They once took turns by numbers with common factors: all that was known of T = 0 came from one prompt."""
    turns, met = count(), set[tuple]()
    pair = replace(subject(), prompts=[[first] * first for first in (1, 2, 3, 4)])

    def steps(subject, tree, temperature, prompts, seed):
        met.add((temperature, prompts[0][0], tree if isinstance(tree, Tree) else None))
        return ()

    monkeypatch.setattr(time, "monotonic", lambda: next(turns))
    monkeypatch.setattr(measuring, "steps", steps)
    measuring.measure(pair, profile(), 900, (0.0, 0.7, 1.0))
    assert len({case[:2] for case in met}) == 3 * 4
    assert len({case[::2] for case in met}) == 3 * (len(measuring.TREES) + 1)


@pytest.mark.parametrize(
    ("budget", "steps_by_temperature"),
    [
        (0, {0.0: 3}),  # a few steps of the first temperature, whatever the budget is
        (7, {0.0: 24}),
        (13, {0.0: 24}),  # six lines of the second temperature are no table
        (14, {0.0: 24, 1.0: 24}),
        (27, {0.0: 24, 1.0: 24}),  # a second turn is not whole
        (28, {0.0: 48, 1.0: 48}),
        (999, {0.0: 72, 1.0: 72}),
    ],
)
def test_the_budget_bounds_the_comparison_and_whole_turns_count(budget, steps_by_temperature, monkeypatch) -> None:
    """A line takes a second here, and a temperature has seven of them."""
    seconds, step_record = count(), SimpleNamespace(emitted=[SimpleNamespace(tokens=[1, 2])], seconds={"target": 0.5})
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(measuring, "steps", lambda *_: iter([step_record] * measuring.STEPS_PER_TEXT))
    lines = measuring.compare(replace(subject(), prompts=[[0]]), profile(), budget, (0.0, 1.0), 72, iter)
    assert len(lines) == 7 * len(steps_by_temperature)
    assert {line.temperature: line.steps for line in lines} == steps_by_temperature
    assert {(line.tokens, line.speed) for line in lines} == {(2, 4)}


def subject(scheme: str = "anchored:lorenz") -> MeasuredPair:
    return MeasuredPair(
        constant_model(lambda _: CERTAIN_TOKEN), constant_model(lambda _: CERTAIN_TOKEN), md.scheme(scheme)
    )


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MULTIDRAFT_TEST_PLANS", "fresh")
    say_once.cache_clear()
    return tmp_path


def test_what_is_kept_is_found_again(own_cache: Path) -> None:
    kept_profile, again = made_up(subject().identity), Profile.from_json(made_up(subject().identity).as_json())
    assert again.as_json() == kept_profile.as_json()
    assert again.rates(1.0).table == pytest.approx(kept_profile.rates(1.0).table)
    assert again.costs(2) == kept_profile.costs(2)
    assert plans.profile_for(subject()).samples == {}
    plans.LOADED_PROFILES.clear()
    assert plans.save(kept_profile)
    assert plans.profile_for(subject()).samples == kept_profile.samples
    assert plans.profile_for(subject("iid:lorenz")).samples == {}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"multidraft plan": 8}', b'{"multidraft plan": 9, "checksum": "0"}', b"\xff\xfe"]
)
def test_a_damaged_profile_is_measured_again_with_a_note(content: bytes, own_cache: Path, caplog) -> None:
    file = plans.place(subject().identity)
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    assert plans.profile_for(subject()).samples == {}
    assert caplog.text.count("; measuring again") == 1
    assert ("another version" in caplog.text) is content.startswith(b'{"multidraft plan"')
    assert "make one" not in caplog.text


PLAIN_STEP, DRAFTED_STEP = Timed(0, 0, 0, 0.0, 1.0, 0.0), Timed(1, 1, 1, 0.1, 1.0, 0.0)


def time_steps(profile: Profile, busy: list[bool], monkeypatch) -> None:
    """Time a step without drafts and one with them for each of these loads."""
    for is_busy in busy:
        monkeypatch.setattr(psutil, "getloadavg", lambda load=1e3 * is_busy: (load, load, load))
        profile.check_load()
        if not profile.is_disturbed:
            for step in PLAIN_STEP, DRAFTED_STEP:
                profile.add(1, step)


@pytest.mark.parametrize(
    ("busy", "steps", "is_kept"),
    [
        ([True] * 4, 4, False),  # without others they serve, and are not kept
        ([True] * 5 + [False] * 3, 3, True),  # the quiet ones take their place
        ([True] * 5 + [False], 1, True),
        ([False] * 2 + [True] + [False] * 3, 3, True),  # too few to know anything when it became busy
        ([False] * 3 + [True] * 4 + [False], 4, True),  # beside the quiet ones, busy ones do not count
    ],
)
def test_steps_of_a_busy_machine_give_way_to_those_of_a_quiet_one(
    busy: list[bool], steps: int, is_kept: bool, own_cache: Path, monkeypatch
) -> None:
    profile = Profile({"target": "any"})
    time_steps(profile, busy, monkeypatch)
    assert profile.step_count(1, drafted=False) == profile.step_count(1, drafted=True) == steps
    assert profile.spent == {1: pytest.approx(2.1 * steps)}
    assert bool(profile.timed_rows) == (steps >= plans.MIN_STEPS)
    assert plans.save(profile) == plans.place(profile.identity).exists() == is_kept


def test_without_a_folder_to_keep_profiles_in_it_goes_on_and_says_so_once(own_cache, monkeypatch, caplog) -> None:
    (own_cache / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_cache / "file"))
    new_profile = plans.profile_for(subject())
    assert [plans.save(new_profile), plans.save(new_profile)] == [False, False]
    assert caplog.text.count("cannot be kept") == 1


def test_a_plan_that_is_none_or_of_something_else_is_refused(tmp_path: Path) -> None:
    file, pair = tmp_path / "plan.json", subject()
    changed, torn = json.loads(made_up(pair.identity).as_json()), json.loads(made_up(pair.identity).as_json())
    changed["spent"]["1"] += 1
    del torn["checksum"], torn["multidraft plan"]
    torn["acceptance"]["0.0"]["weight"] = [1.0, 2.0]
    for text, advice in (
        (
            made_up(pair.identity | {"cpu": "x"}).as_json(),
            "is of another cpu; make the right one with `multidraft tune",
        ),
        (Profile(pair.identity).as_json(), "has no costs; make the right one"),
        ("nonsense", "it is no plan"),
        (json.dumps(changed), "checksum is wrong"),
        (
            json.dumps({"multidraft plan": plans.FORMAT_VERSION, "checksum": plans.checksum(torn)} | torn),
            "it is no plan",
        ),
    ):
        file.write_text(text)
        with pytest.raises(AdviceError, match=advice):
            plans.profile_for(pair, file)
    file.write_bytes(b" " * (plans.MAX_PLAN_BYTES + 1))
    for path, advice in (
        (tmp_path / "none", "cannot read the plan"),
        (Path("/dev/zero"), "has more than 4"),
        (file, "has more than 4"),
    ):
        with pytest.raises(AdviceError, match=advice):
            plans.profile_for(pair, path)


def test_what_is_shipped_lends_its_acceptance_to_the_same_drafter(own_cache: Path) -> None:
    """Costs are the machine's, and are not lent."""
    shipped = [Profile.from_json(entry.read_text()) for entry in plans.shipped_profiles()]
    assert len(shipped) == 5
    for lender in shipped:
        assert {*lender.acceptance} == {0.0, 0.7, 1.0}
        assert not lender.samples
        identity, draft = lender.identity | {"cpu": "another"}, lender.identity["draft"]
        fresh_profile = plans.fresh(identity)
        assert fresh_profile.samples == {}
        assert (fresh_profile.rates(1.0).table == lender.rates(1.0).table).all()
        assert plans.fresh(identity | {"scheme": "another"}).acceptance == {}
        assert plans.fresh(identity | {"draft": draft | {"dtype": "another"}}).acceptance
        assert plans.fresh(identity | {"draft": draft | {"kind": "another"}}).acceptance == {}
