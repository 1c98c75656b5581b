"""The study of growing trees: exact tokens, time as it is counted, choices that have not seen their prompt."""

import pytest
import torch
from multidraft_research.studies.on_models import adaptive
from multidraft_research.studies.on_models.gains import ALL, gain, gains
from multidraft_research.studies.running.cells import ratio
from plans import costs, predictions, rates

import multidraft as md
from multidraft.auditing.enumeration import all_trees, first_state, step_law
from multidraft.autotune.costs import CostsByRows
from multidraft.autotune.pilot import Pilot
from multidraft.autotune.trials import tried
from multidraft.decoding.endings import expected_tokens
from multidraft.decoding.shapes import Fixed
from multidraft.decoding.state import Plan
from multidraft.decoding.tree import NO_DRAFTS, Tree
from multidraft.models.table import TableModel, random_table

COSTS = CostsByRows((1,), (costs(1.0, 0.1, 0.02),))


def tables() -> tuple[TableModel, TableModel]:
    return tuple(TableModel(random_table(3, 4, seed, 0.7), 3) for seed in (1, 2))


@pytest.mark.parametrize("walk", ["commit", "deferred"])
def test_expected_tokens_are_those_of_the_law_of_a_step(walk: str) -> None:
    """Averaged over all trees that can be drawn."""
    plan = Plan(md.scheme("anchored:lorenz"), Tree.parse("2x1"), walk, measure=False)
    law = step_law(*tables(), [0], plan)
    forest = all_trees(first_state(*tables(), [0], plan), plan)
    found = forest.probability @ torch.tensor(expected_tokens(forest.tree, plan), dtype=torch.float64)
    assert float(found) == pytest.approx(1 + law.accepted, abs=1e-9)


def test_a_trial_leaves_the_state_as_it_was() -> None:
    plan = Plan(md.scheme("anchored:lorenz"), Pilot(COSTS, predictions(rates(0.6))), measure=False)
    state = first_state(*tables(), [0], plan)
    one = tried(state, Plan(plan.scheme, NO_DRAFTS, measure=False))
    assert (one.tokens, one.reads, one.nodes, one.draws) == (1.0, (), 0, 0)
    chain = tried(state, Plan(plan.scheme, Tree.parse("1x1"), measure=False))
    assert (chain.reads, chain.nodes, chain.draws) == ((1, 1), 2, 2)
    assert tried(state, plan).tokens > 1
    assert not state.used


def test_time_is_counted_in_passes_of_the_target() -> None:
    plan = Plan(md.scheme("anchored:lorenz"), Tree.parse("2x1"), measure=False)
    trial = tried(first_state(*tables(), [0], plan), plan)
    found = {cell.row: cell for cell in adaptive.cells("model, prose", "2x1", 1.0, trial)}
    cell = found["level 0.12, node 0.02|2x1"]
    assert (cell.total, cell.weight) == (trial.tokens, pytest.approx(1 + 2 * 0.12 + 4 * 0.02))


def test_the_gain_is_that_of_shapes_chosen_elsewhere() -> None:
    """On each of three prompts another growing shape shines, which nobody could have known."""
    prompts = "abc"
    shapes = {"2x1": {prompt: (2.0, 1.0) for prompt in prompts}, "1": {prompt: (1.0, 1.0) for prompt in prompts}}
    shapes |= {f"grows by {one}": {prompt: (5.0 if prompt == one else 1.0, 1.0) for prompt in prompts} for one in "abc"}
    assert ratio(gain(shapes)).value == pytest.approx(0.5)
    shapes["grows always"] = {prompt: (4.0, 1.0) for prompt in prompts}
    assert ratio(gain(shapes)).value == pytest.approx(2.0)
    assert ratio(gain(shapes)).standard_error == pytest.approx(0.0)


def test_kinds_of_text_stand_beside_all_prompts() -> None:
    found = {
        (f"model, {kind}", f"level 1, node 1|{shape}", 0.0): {f"{kind}/1": (tokens, 1.0)}
        for kind, tokens in (("prose", 1.0), ("code", 3.0))
        for shape in ("1", "grows by it")
    }
    places = gains(found)
    assert {panel for panel, _, _ in places} == {"model, prose", "model, code", f"model, {ALL}"}
    assert len(places[f"model, {ALL}", "level 1, node 1", 0.0]) == 2


def test_without_confidence_growing_is_as_good_as_the_best_fixed_tree() -> None:
    """On a draft that says the same everywhere."""
    target = TableModel(lambda _: torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 3)
    plan = Plan(md.scheme("anchored:lorenz"), Fixed(Tree.parse("1x1")), measure=False)
    state = first_state(target, target, [0], plan)
    growing = tried(state, Plan(plan.scheme, Pilot(COSTS, predictions(rates(0.99, most=1)), depth=2), measure=False))
    assert growing.tokens == pytest.approx(tried(state, plan).tokens)
