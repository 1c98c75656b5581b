"""The study of growing trees: exact tokens, time as it is counted, choices that have not seen their prompt."""

import pytest
import torch
from multidraft_research.studies.on_models import adaptive
from multidraft_research.studies.on_models.gains import ALL, gain, gains
from multidraft_research.studies.on_models.trials import tried
from multidraft_research.studies.running.cells import ratio
from plans import costs, rates

import multidraft as md
from multidraft.auditing.endings import expected_tokens
from multidraft.auditing.enumeration import all_trees, first_state, step_law
from multidraft.autotune.growing import Growing
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import NO_DRAFTS, Tree
from multidraft.models.table import TableModel, random_table


def tables() -> tuple[TableModel, TableModel]:
    one, other = (TableModel(random_table(3, 4, seed, 0.7), 3) for seed in (1, 2))
    return one, other


def fixed(name: str, walk: str = "deferred") -> DecodeConfig:
    tree = Tree.parse(name) if name else NO_DRAFTS
    return DecodeConfig(md.scheme("anchored:lorenz"), StaticTree(tree), walk, measure=0)


def growing(one: float) -> DecodeConfig:
    policy = Growing(8, 2)
    policy.price(rates(one, second=0.0), costs(1.0, 0.1, 0.02), 1.0)
    return DecodeConfig(md.scheme("anchored:lorenz"), policy, measure=0)


@pytest.mark.parametrize("walk", ["commit", "deferred"])
def test_expected_tokens_are_those_of_the_law_of_a_step(walk: str) -> None:
    """Averaged over all trees that can be drawn."""
    config = fixed("2x1", walk)
    law = step_law(*tables(), [0], config)
    forest = all_trees(first_state(*tables(), [0], config), config)
    tokens = zip(forest.probability, expected_tokens(forest.scored, config), strict=True)
    assert sum(chance * count for chance, count in tokens) == pytest.approx(1 + law.accepted, abs=1e-9)


def test_a_trial_leaves_the_state_as_it_was() -> None:
    state = first_state(*tables(), [0], fixed("4x2x2"))
    assert tried(state, fixed("")) == (1.0, (0, 0, 0))
    assert tried(state, fixed("1x1")).work == (2, 2, 2)
    assert tried(state, growing(0.6)).tokens > 1
    assert not state.used


def test_time_is_counted_in_passes_of_the_target() -> None:
    trial = tried(first_state(*tables(), [0], fixed("2x1")), fixed("2x1"))
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
    """On a draft that says the same everywhere, and is right."""
    target = TableModel(lambda _: torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 3)
    state = first_state(target, target, [0], fixed("1x1"))
    assert tried(state, growing(0.99)).tokens == pytest.approx(tried(state, fixed("1x1")).tokens)
