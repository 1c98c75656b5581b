"""`multidraft tune --what-if`: the tree that would pay, beside all trees of so many nodes, and the example's files."""

from itertools import product

import pytest
from commands import printed, run
from multidraft_research.tuning.target_passes import (
    DRAFTED_STEP_SECONDS,
    PLAIN_STEP_SECONDS,
    TOKEN_COUNTS,
    PassCosts,
    added_acceptance,
    best_gain,
    drafting_seconds,
    time_passes,
)

from multidraft.decoding.tree import NO_DRAFTS, Tree
from multidraft.models.user_models import as_reader

MAX_NODES = 6


def costs_of(first: float, token: float) -> PassCosts:
    """Passes that cost so much for each further token, up to the largest tree of `all_trees`; then far too much."""
    return PassCosts({count: first + token * (count - 1) + 1e3 * (count > MAX_NODES) for count in range(1, 17)})


def all_trees() -> list[Tree]:
    """Every tree of at most so many nodes with the root, by the drafts of its slots."""
    drafts = [()] + [counts for size in range(1, MAX_NODES) for counts in product(range(MAX_NODES), repeat=size)]
    sizes = [(counts, 1 + sum(counts)) for counts in drafts]
    trees = list[Tree]()
    for counts, size in sizes:
        if len(counts) < size <= MAX_NODES and not (counts and counts[-1] == 0):
            padded = [*counts, *[0] * (size - len(counts))]
            ends = [1 + sum(padded[: slot + 1]) for slot in range(size)]
            if all(slot < end for slot, end in enumerate([1, *ends[:-1]])):
                trees.append(Tree.from_drafts(padded))
    return trees


def expected_tokens(tree: Tree, acceptance: float) -> float:
    """Each node's probability to be on the accepted path, summed."""
    reach, rank = [1.0], 0
    for slot, parent in enumerate(tree.parents[1:], 1):
        rank = rank + 1 if tree.parents[slot - 1] == parent else 0
        reach.append(reach[parent] * added_acceptance(acceptance, rank))
    return sum(reach)


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.65, 0.9])
@pytest.mark.parametrize("token", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3])
def test_no_tree_is_faster_than_the_one_that_is_named(acceptance, token, share):
    costs = costs_of(0.02, 0.02 * token)
    plain = costs(1) + PLAIN_STEP_SECONDS
    speeds = {"": 1.0} | {
        tree.name: plain
        * expected_tokens(tree, acceptance)
        / (DRAFTED_STEP_SECONDS + costs(len(tree)) + drafting_seconds(tree, costs, share))
        for tree in all_trees()
        if len(tree) > 1
    }
    gain = best_gain(costs, acceptance, share)
    assert gain.times_plain == pytest.approx(max(speeds.values()), rel=1e-9)
    assert gain.times_plain == pytest.approx(speeds[gain.tree.name], rel=1e-9)
    assert gain.tokens == pytest.approx(expected_tokens(gain.tree, acceptance))


def test_all_trees_are_all():
    """There are as many ordered trees of n nodes as the Catalan number of n - 1."""
    sizes = [len(tree) for tree in all_trees()]
    assert [sizes.count(size) for size in range(1, MAX_NODES + 1)] == [1, 1, 2, 5, 14, 42]


def test_nothing_pays_where_a_token_costs_as_much_as_a_pass():
    assert best_gain(costs_of(0.02, 0.02), 0.65, 0.02).tree is NO_DRAFTS
    assert best_gain(costs_of(0.02, 0.0), 0.65, 0.02).times_plain > 2


def test_passes_are_timed_and_never_fall():
    from multidraft.zoo import load_pair

    costs = time_passes(as_reader(load_pair()[0]), 0)
    seconds = [*costs.seconds.values()]
    assert [*costs.seconds] == [*TOKEN_COUNTS]
    assert 0 < seconds[0]
    assert seconds == sorted(seconds)
    assert costs(5) == pytest.approx((costs(4) + costs(6)) / 2)


def test_the_command_names_trees():
    options = ["tune", "--target", "embedded", "--budget", 0, "--what-if", 0.0, "--what-if", 1.0]
    report = printed(*options)
    assert [report["gains"][0][name] for name in ("tree", "tokens", "times_plain")] == ["none", 1.0, 1.0]
    assert set(report["milliseconds"]) == {*map(str, TOKEN_COUNTS)}
    shown = run(*options, "--drafter-share", 0.5).stdout
    assert "0.5 of the target's pass" in shown
    assert "none" in shown


def test_the_example_writes_a_file_whose_passes_are_timed(tmp_path, monkeypatch):
    pytest.importorskip("ggufs", reason="no library for GGUF files is installed")
    random_gguf = pytest.importorskip("random_gguf")
    monkeypatch.setitem(random_gguf.SHAPES, "8b", (2, 64, 128, 2, 1, 96))
    path = tmp_path / "random.gguf"
    random_gguf.write("8b", path, "q4_0")
    report = printed("tune", "--target", path, "--budget", 0, "--what-if", 0.5)
    assert report["gains"][0]["acceptance"] == 0.5
