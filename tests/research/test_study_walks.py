"""The bound over whole trees: exact where it is known, met on chains, and beaten by biased walks alone."""

from functools import partial

import pytest
import torch
from commands import ends_with_advice, printed, run
from multidraft_research.studies.tree_bound import realised_trees, tree_bound
from multidraft_research.studies.walks import TREES, WALKERS, accepted_tokens, measure, random_pair

import multidraft as md
from multidraft.auditing.enumeration import all_trees, first_state
from multidraft.decoding.policy import StaticTree, TreePolicy
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import MIN_PROBABILITY, WalkResult
from multidraft.models.prefix_models import TableModel

EXACT = 1e-9  # of the linear program
OPTIMAL_WITH_ONE_DRAFT = [
    "iid:lorenz",
    "iid:k_sequential",
    "iid:recursive_rejection",
    "without_replacement:recursive_rejection",
    "greedy:maximal_coupling",
    "anchored:lorenz",
    "top:naive",
]
BRANCHING = [tree for tree in TREES if not Tree.parse(tree).drafts[0] == 1] + ["[[0],[1],[0,0],[0,1],[0,0,0]]"]


def forest_of(way: tuple[DecodeConfig, TreePolicy], vocabulary: int, seed: int):
    """The trees of a random case, and the target's conditional."""
    target, draft = random_pair(vocabulary, 3, seed)
    state = first_state(TableModel(target, vocabulary), TableModel(draft, vocabulary), [0], *way)
    return all_trees(state, *way), lambda tokens: target((0, *tokens)), draft


@pytest.mark.parametrize("name", ["iid:lorenz", "without_replacement:naive", "anchored:lorenz", "top:naive"])
@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_one_level_is_the_optimal_transport_problem(name, drafts):
    scheme = md.scheme(name, drafts=drafts)
    forest, target, draft = forest_of((DecodeConfig(scheme), StaticTree(Tree.parse(str(drafts)))), 4, seed=drafts)
    trees = realised_trees(forest)
    assert sum(trees.values()) == pytest.approx(1, abs=1e-12)
    optimum = scheme.optimal_acceptance_rate(target(()), draft((0,))).item()
    assert tree_bound(trees, target, 4) == pytest.approx(optimum, abs=EXACT)


@pytest.mark.parametrize("name", OPTIMAL_WITH_ONE_DRAFT)
@pytest.mark.parametrize(("tree", "vocabulary"), [("1", 3), ("1x1", 3), ("1x1x1", 2)])
def test_deferred_meets_the_bound_on_chains(name, tree, vocabulary):
    line = measure(md.scheme(name, drafts=1), tree, vocabulary, cases=2, seed=1)
    for walk in set(WALKERS) - {"commit", "deferred"}:
        assert line.walks[walk] == pytest.approx(line.bound, abs=EXACT)
    if tree != "1" and name != "top:naive":  # committing loses nothing where nothing else could have been drafted
        assert line.walks["commit"] < line.bound - 1e-3
    assert line.bound - 0.02 < line.walks["deferred"] < line.bound + EXACT  # the coin for small claims costs a little


@pytest.mark.parametrize("name", ["iid:lorenz", "without_replacement:recursive_rejection", "anchored:lorenz"])
@pytest.mark.parametrize("tree", BRANCHING)
def test_no_walk_exceeds_the_bound_on_trees(name, tree):
    line = measure(md.scheme(name), tree, 2, cases=2, seed=2)
    assert min(line.short.values()) > -EXACT
    assert line.walks["commit"] <= line.walks["deferred, no coin for small claims"] + EXACT


def eager(node, weight, has_drafts, coin, factor=1.05):
    """The deferred walk, but each child is entered five percent too often."""
    if not has_drafts(node):
        return WalkResult() if coin(weight) else None
    verdict, left = (yield node, weight), 1.0
    for child, accept in verdict.children:
        if left <= MIN_PROBABILITY:
            return None
        if walk_result := (yield from eager(child, min(factor * accept / left, 1.0), has_drafts, coin, factor)):
            walk_result.path.insert(0, child)
            return walk_result
        left -= accept
    return (
        WalkResult(residual=verdict.residual) if left > MIN_PROBABILITY and coin(verdict.residual_mass / left) else None
    )


@pytest.mark.parametrize("tree", ["1x1", "1x1x1"])
def test_a_walk_that_accepts_too_often_exceeds_the_bound(tree):
    way = DecodeConfig(md.scheme("iid:lorenz")), StaticTree(Tree.parse(tree))
    forest, target, _ = forest_of(way, 3, seed=0)
    bound = tree_bound(realised_trees(forest), target, 3)
    assert accepted_tokens(forest, way[0], partial(eager, factor=1.0)) == pytest.approx(bound, abs=EXACT)
    assert accepted_tokens(forest, way[0], eager) > bound + 1e-3


def test_too_much_is_refused_with_advice():
    tree = frozenset((0,) * depth for depth in range(1, 30))
    with pytest.raises(md.AdviceError, match="take a smaller tree"):
        tree_bound({tree: 1.0}, lambda tokens: torch.full((999,), 1 / 999), 999)


def test_the_command_prints_a_table_or_json_and_wrong_input_ends_with_one_line():
    words = ["study", "walks", "--scheme", "iid:lorenz", "--tree", "1x1", "--tree", "2", "--cases", 2]
    shown, lines = run(*words), printed(*words)
    assert shown.exit_code == 0, shown.output
    assert [line["tree"] for line in lines] == ["1x1", "2"]
    for line in lines:
        assert f"{line['bound']:.4f}" in shown.stdout
        assert set(line["walks"]) == set(WALKERS)
        assert max(line["short"].values()) >= line["short"]["deferred, no coin for small claims"] > -EXACT
    for arguments, advice in (
        (["--scheme", "distinct:naive"], "several draft models"),
        (["--tree", "9x9"], "smaller tree"),
    ):
        ends_with_advice(run("study", "walks", *arguments), advice)
