"""Auto: the tree that pays, exactly lossless, and the same again with the same plan and seed."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from plans import TREES, costs, made_up, plan, predictions, rates

import multidraft as md
from multidraft.auditing.enumeration import first_tokens, largest_difference, step_law, target_law
from multidraft.autotune import comparing, keeping, learning, making
from multidraft.autotune.auto import Auto, Limits
from multidraft.autotune.costs import CostsByRows
from multidraft.autotune.making import make
from multidraft.autotune.pair_plan import PairPlan
from multidraft.autotune.subject import Subject
from multidraft.decoding.metrics import Info
from multidraft.decoding.prefill import start
from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.state import Plan
from multidraft.decoding.step import step
from multidraft.decoding.tree import Tree
from multidraft.errors import AdviceError
from multidraft.models.table import TableModel, random_table
from multidraft.verification.distributions import tempered
from multidraft.zoo import load_pair

EXACT, BIASED = 1e-12, 1e-4


def tables(vocabulary: int = 3) -> tuple[TableModel, TableModel]:
    return tuple(TableModel(random_table(vocabulary, 4, seed, 0.7), vocabulary) for seed in (1, 2))


def plan_of(trees: list[str], tempers: list[float]) -> PairPlan:
    made = plan({}, trees=trees)
    return replace(made, acceptance=(replace(made.acceptance[0], tempers=tempers),))


def error(tree: object, walk: str = "deferred") -> float:
    """How far the law of the first three tokens is from the target's."""
    target, draft = tables()
    law = step_law(target, draft, [0], Plan(md.scheme("anchored:lorenz"), tree, walk, measure=False)).law
    conditional = lambda tokens: target.conditional((0, *tokens))  # noqa: E731
    return largest_difference(first_tokens(law, conditional, 3), target_law(conditional, 3))


@pytest.mark.parametrize("walk", ["deferred", "commit"])
@pytest.mark.parametrize("tree", ["2x1", "2/2,1"])
def test_auto_has_the_target_law_also_from_flatter_drafts(tree: str, walk: str):
    assert error(Auto(plan_of([tree], [1.0, 1.2, 1.5, 1.0]), 1.0, Limits()), walk) <= EXACT


def growing(made: PairPlan) -> PairPlan:
    """A plan by which trees that grow are faster."""
    [own] = made.acceptance
    filled = predictions(own.rates, slope=1.0)
    learnt = replace(own, rates=filled.rates, confidence=filled.confidence, growing=1.1)
    return replace(made, acceptance=(learnt,))


def test_trees_grow_for_one_row_where_that_was_faster_by_more_than_its_noise():
    made = growing(plan({}, by_rows=CostsByRows((1,), (costs(node=0.4),))))
    shape = Auto(made, 1.0, Limits())
    info = run(shape, *tables(), 20)
    assert len(info.shapes) > 1
    assert 1 < info.predicted_tokens / info.row_passes
    assert run(Auto(made, 1.0, Limits()), *tables(), 20).shapes == info.shapes
    assert len(shape.seed(1)) == 1  # the root alone is known beforehand
    assert len(shape.seed(4)) > 1
    noisy = replace(made, acceptance=(replace(made.acceptance[0], noise=0.2),))
    assert Auto(noisy, 1.0, Limits()).pilot is None


def test_a_rule_that_is_not_told_of_a_temper_is_caught(monkeypatch: pytest.MonkeyPatch):
    """The mutant judges flatter drafts by what the draft model said."""
    flatter = Auto(plan_of(["2x1"], [1.0, 1.5, 1.5]), 1.0, Limits())
    assert error(flatter) <= EXACT
    told = ScoredTree.draft
    monkeypatch.setattr(ScoredTree, "draft", lambda *asked: tempered(told(*asked), 1 / 1.5))
    assert error(flatter) > BIASED


def run(shape: Auto, target: TableModel, draft: TableModel, steps: int, seed: int = 0) -> Info:
    """Steps of one row."""
    info = Info()
    settled = Plan(md.scheme("anchored:lorenz"), shape, measure=False)
    state = start([[0]], target, draft, settled, 999, torch.Generator().manual_seed(seed), info)
    for _ in range(steps):
        state, _ = step(state, settled, info)
    return info


def test_a_draft_that_is_never_right_is_given_up_and_probed_with_growing_pauses():
    wrong = TableModel(lambda _: torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64), 3)
    right = TableModel(lambda _: torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), 3)
    info = run(Auto(plan({}), 1.0, Limits()), right, wrong, 300)
    assert info.accepted == 0
    assert 1 <= info.drafts <= 100
    later = run(Auto(plan({}), 1.0, Limits()), right, wrong, 600)
    assert later.drafts - info.drafts <= 4


def test_a_draft_that_has_become_good_is_used_again():
    """For 200 steps it is never right, then always."""
    wanted = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    target = TableModel(lambda _: wanted, 3)
    draft = TableModel(lambda prefix: wanted.roll(1) if len(prefix) < 200 else wanted, 3)
    info = run(Auto(plan({}), 1.0, Limits()), target, draft, 600)
    assert info.accepted > 300


def test_a_perfect_draft_is_drafted_deep():
    same = TableModel(random_table(3, 2, 5), 3)
    made = plan({}, found=rates(0.99), trees=["1", "1x1x1", "1x1x1x1x1x1"])
    assert run(Auto(made, 1.0, Limits()), same, same, 50).shapes == {"1x1x1x1x1x1": 50}


def test_shares_that_add_up_to_one_but_for_rounding_leave_numbers():
    """The chance to miss is never below nothing: powers of that are no numbers, and no number was the largest speed."""
    found = rates(1.0)
    rounded = replace(found, shares=[[share * (1 + 4e-16) for share in own] for own in found.shares])
    candidates = plan({}, found=rounded, trees=["1", "2x1"]).choice(1.0)
    assert (candidates.tokens(1.3) >= 1).all()


def test_limits_hold():
    shape = Auto(plan({}, found=rates(0.99), trees=["1", "1x1x1", "4x2x2x1"]), 1.0, Limits(nodes=3, depth=2))
    assert [shape.candidates.shapes[i].tree.name for i in shape.allowed.nonzero()[0]] == ["", "1"]
    assert shape.most_slots == 2


@pytest.mark.parametrize("text", ["auto,nodes=0", "auto,width=3", "auto nodes=3", "automatic", "auto,nodes=99999"])
def test_strange_limits_are_refused(text: str):
    with pytest.raises(AdviceError, match="write auto, or auto,nodes=24,depth=6"):
        Limits.parse(text)


def test_a_run_repeats_itself():
    pair = load_pair()
    settings = dict(tree="auto", max_new_tokens=24, eos_token_id=[], temperature=0.7)
    runs = [
        md.generate(pair.target, pair.draft, [[5, 6], [7]], generator=torch.Generator().manual_seed(3), **settings)
        for _ in range(2)
    ]
    assert [row.tolist() for row in runs[0][0]] == [row.tolist() for row in runs[1][0]]
    assert runs[0][1].shapes == runs[1][1].shapes
    assert runs[0][1].predicted_seconds > 0


def subject() -> Subject:
    target, draft = tables()
    return Subject(target, draft, [[0, 1, 2], [1]], md.scheme("anchored:lorenz"), "deferred")


def test_a_plan_is_measured_and_comes_back_from_its_text(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(making, "ROWS", {1: (("", "1", "2x1"), 2), 2: (("", "1"), 2)})
    monkeypatch.setattr(learning, "MOST", 12)
    monkeypatch.setattr(comparing, "TEXTS", 1)
    done: list[int] = []
    made = make(subject(), done.append)
    assert sum(done) == making.work()
    assert PairPlan.from_json(made.as_json()) == made
    assert made.costs.at(1).of_tree(Tree.parse("2x1")) > 0
    for own in made.acceptance:
        assert own.trees[0].name == ""
        assert all(0 <= rate <= 1 + 1e-9 for rates in own.rates.acceptance for rate in rates[:1])
    assert made.at(0.0).rates.acceptance[3][0] == pytest.approx(1.0)  # three drafts of three tokens


def test_a_plan_is_made_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(keeping, "LOADED", {})
    monkeypatch.setattr(keeping, "make", lambda one, tick: made.append(one) or made_up(one))
    first = keeping.plan_for(subject())
    keeping.LOADED.clear()
    assert keeping.plan_for(subject()) == first
    assert len(made) == 1


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"multidraft plan": 1}', b'{"multidraft plan": 9}', b"\xff\xfe"]
)
def test_a_damaged_plan_is_made_anew_with_a_note(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(keeping, "LOADED", {})
    file = keeping.place(subject().identity)
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    with caplog.at_level(logging.WARNING, "multidraft"):
        assert keeping.plan_for(subject()).identity == subject().identity
    assert "is damaged; measuring anew" in caplog.text
    assert json.loads(file.read_text())["threads"] == 1


def test_without_a_folder_to_keep_plans_in_it_measures_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(keeping, "LOADED", {})
    with caplog.at_level(logging.WARNING, "multidraft"):
        assert keeping.plan_for(subject()).threads == 1
    assert "cannot be kept" in caplog.text


def test_a_plan_of_another_pair_or_none_is_refused(tmp_path: Path):
    file, other = tmp_path / "plan.json", subject()
    file.write_text(plan(other.identity | {"target": {"kind": "another"}, "cpu": "another"}).as_json())
    with pytest.raises(AdviceError, match="is of another target and cpu; make the right one with `multidraft tune"):
        keeping.plan_for(other, file)
    file.write_text("nonsense")
    with pytest.raises(AdviceError, match="it is no plan"):
        keeping.plan_for(other, file)
    with pytest.raises(AdviceError, match="cannot read the plan"):
        keeping.plan_for(other, tmp_path / "none.json")


def test_a_plan_is_for_auto(tmp_path: Path):
    target, draft = tables()
    with pytest.raises(AdviceError, match="use tree='auto'"):
        md.generate(target, draft, [[0]], tree="2x1", plan=tmp_path / "plan.json")


def test_schemes_that_leave_no_choice_take_the_fixed_tree():
    target, draft = tables()
    info = md.generate(target, draft, [[0]], scheme="iid:max_flow", tree="auto", max_new_tokens=8)[1]
    assert set(info.shapes) == {"2x1x1x1"}


@pytest.mark.parametrize(("gain", "drafts"), [(1.01, False), (1.04, True)])
def test_drafts_must_win_by_a_margin(gain: float, drafts: bool):
    accepted, plain = 0.7, 10.0
    level = plain * (1 + accepted) / gain - plain
    shape = Auto(plan({}, CostsByRows((1,), (costs(plain, level),)), rates(accepted), ["1"]), 1.0, Limits())
    assert (len(shape.seed(1)) > 1) == drafts


@pytest.mark.parametrize(("threads", "clock"), [(1, time.thread_time), (2, time.perf_counter)])
def test_one_thread_is_asked_for_its_own_seconds(threads: int, clock: Callable[[], float]):
    pair = load_pair()
    with making.using(threads):
        assert Subject(pair.target, pair.draft, [[0]], md.scheme("anchored:lorenz"), "deferred").clock is clock
        assert subject().clock is time.perf_counter  # of models that may compute elsewhere


def test_in_a_batch_the_costs_of_its_rows_decide():
    by_rows = CostsByRows((1, 4), (costs(), costs(node=50.0)))
    shape = Auto(plan({}, by_rows=by_rows), 1.0, Limits())
    alone, together = shape.seed(1), shape.seed(4)
    assert len(alone) > 2
    assert len(together) == 1
    assert set(TREES) >= {alone.name}
