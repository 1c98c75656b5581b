"""A run without drafts where they could not make it shorter; made-up costs, where the seconds are known by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from plans import costs, made_up, plan, rates

import multidraft as md
from multidraft.autotune import keeping
from multidraft.autotune.candidates import MARGIN
from multidraft.autotune.costs import CostsByRows
from multidraft.autotune.foresight import eased, pays, whole
from multidraft.autotune.pair_plan import PairPlan
from multidraft.models.table import TableModel, random_table

EVERY = np.ones(2, dtype=bool)


def of(reading: float, accepted: float = 0.5, rows: tuple[int, ...] = (1,)) -> PairPlan:
    """A pass takes 10 seconds and a draft 1, so that a step gives 1.5 tokens in 11 seconds where half are accepted."""
    own = replace(costs(), reading=reading)
    return plan({}, CostsByRows(rows, (own,) * len(rows)), rates(accepted), ["1"])


def test_reading_the_prompt_must_be_earned_back():
    gain = 30 * 10 - (1 + MARGIN) * 30 / 1.5 * 11  # seconds that drafts save in 30 tokens
    assert pays(of(0.99 * gain / 20), 1.0, [20], [30], EVERY)
    assert not pays(of(1.01 * gain / 20), 1.0, [20], [30], EVERY)
    assert not pays(of(0.99 * gain / 20), 1.0, [20], [30], np.array([True, False]))  # the tree is not allowed


def test_drafts_are_tried_where_reading_takes_next_to_nothing():
    useless = 0.0
    assert pays(of(0.004 * 300 / 20, useless), 1.0, [20], [30], EVERY)
    assert not pays(of(0.006 * 300 / 20, useless), 1.0, [20], [30], EVERY)


def test_rows_that_go_on_alone_make_a_batch_of_drafts_slower():
    """Passes take the same with one row or two: plainly they share them to the end, and with drafts not quite."""
    alone, together = (of(0.0053 * 300, 0.145, rows) for rows in [(1,), (1, 2)])
    assert pays(alone, 1.0, [1], [30], EVERY)
    assert not pays(together, 1.0, [1, 1], [30, 30], EVERY)


@pytest.mark.parametrize(("rows", "worth"), [(1, True), (16, False)])
def test_many_rows_must_gain_more(rows: int, worth: bool):
    """A tenth is gained by texts so long that they end together."""
    reading = 0.0053 * 10 * 10**5
    assert pays(of(reading, 0.21, (1, 16)), 1.0, [1] * rows, [10**5] * rows, EVERY) == worth


def test_whole_runs():
    assert whole(lambda rows: 2.0, [4, 4, 4]) == 2
    assert whole(lambda rows: 1 / rows, [5, 1, 2]) == 1 * 3 + 1 * 2 + 3 * 1


def test_texts_differ_in_how_easily_they_are_drafted():
    assert eased([7]) == [pytest.approx(7)]
    work = np.log(np.array(eased([10] * 400)) / 10)
    assert work.mean() == pytest.approx(0, abs=1e-9)
    assert work.std() == pytest.approx(0.8 / 10**0.5, rel=0.02)


def test_generate_leaves_the_draft_model_alone_where_it_does_not_pay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    target, draft = (TableModel(random_table(5, 2, seed), 5) for seed in (1, 2))

    def drafted(reading: float) -> int:
        file = tmp_path / f"{reading}.json"
        made = made_up(keeping.Subject(target, draft, [[0]], md.scheme("anchored:lorenz"), "deferred"))
        dear = replace(made, costs=CostsByRows((1,), (replace(costs(), reading=reading),)))
        file.write_text(dear.as_json())
        generator = torch.Generator().manual_seed(0)
        _, info = md.generate(target, draft, [[0]], max_new_tokens=8, plan=file, generator=generator)
        return info.drafts

    assert drafted(0.0) > 0
    assert drafted(1e3) == 0
