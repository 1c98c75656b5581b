"""The best tree where it is known in closed form: nodes, levels or acceptance that cost or give nothing."""

import pytest
from plans import costs, rates

from multidraft.autotune.best_trees import best_tree, k_configs, menu, speed
from multidraft.autotune.costs import Costs, CostsByRows, Curve
from multidraft.autotune.rates import WEIGHTS, Rates, between
from multidraft.decoding.tree import NO_DRAFTS, Tree

DEAR = 1e6


def test_a_useless_draft_is_not_drawn():
    assert best_tree(rates(0.0, second=0.0), costs(), 1)[0] == NO_DRAFTS


def test_infinitely_dear_nodes_leave_plain_decoding():
    assert best_tree(rates(0.9), costs(node=DEAR), 1)[0] == NO_DRAFTS


def test_dear_levels_leave_plain_decoding():
    assert best_tree(rates(0.9), costs(level=DEAR), 1)[0] == NO_DRAFTS


def test_free_nodes_are_drafted_as_many_as_there_can_be_on_one_level():
    assert best_tree(rates(0.5), costs(level=8.0), 1, levels=1)[0] == Tree.levels([4])


def test_a_perfect_draft_that_is_free_goes_as_deep_as_it_may():
    best, rho = best_tree(rates(1.0), costs(level=0.0, node=0.01, more=0.01), 1, levels=6)
    assert best == Tree.levels([1] * 6)
    assert rho == pytest.approx(7 / (10 + 6 * 0.01))


@pytest.mark.parametrize(("accepted", "level"), [(0.8, 1.0), (0.6, 2.0), (0.9, 3.0), (0.3, 2.9)])
def test_a_chain_has_the_best_length(accepted: float, level: float):
    """With one draft at most, tokens and seconds are sums of a series."""
    one = rates(accepted, most=1)
    found, rho = best_tree(one, costs(level=level), 1)
    by_length = {n: sum(accepted**d for d in range(n + 1)) / (10 + n * level) for n in range(9)}
    assert rho == pytest.approx(max(by_length.values()))
    assert len(found) - 1 == max(by_length, key=by_length.__getitem__)


def test_batches_shrink_trees_to_chains_and_to_none():
    """The dearer a node is for all rows together, the smaller the tree."""
    sizes = [len(best_tree(rates(0.6), costs(node=node), 16)[0]) for node in (0.0, 0.3, 1.0, 3.0, 30.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 9
    assert sizes[-1] == 1


def test_no_k_config_is_better_than_the_best_of_the_menu():
    found, price = rates(0.6), costs(level=0.7, node=0.2, more=0.1)
    best = max(speed(tree, found, price, 1) for tree in menu(found, price, 1))
    assert all(speed(tree, found, price, 1) <= best for tree in k_configs(8))
    assert best > speed(Tree.parse("3x1x1"), found, price, 1)


def test_reaches_add_up_over_paths():
    tree = Tree.parse("2x1")
    reach = rates(0.6, second=0.5).reaches(tree)
    assert reach == pytest.approx([1, 0.6, 0.2, 0.36, 0.12])


def test_a_small_weight_is_accepted_more_often():
    one = Rates([[0.0] * len(WEIGHTS), [0.6, 0.7, 0.8, 0.9]], [[], [1.0]], [[], [0.5]])
    assert one.reaches(Tree.parse("1x1")) == pytest.approx([1, 0.6, 0.6 * 0.8])
    assert between([0.6, 0.7, 0.8, 0.9], 0.875) == pytest.approx(0.65)


def test_costs_lie_on_lines():
    line = Costs(Curve((1, 3), (1.0, 2.0)), Curve((1,), (0.5,)), 0.1, 0.0, 0.2, 0.01, 0.03)
    assert line.seconds((1, 2), 4, 2, 1) == pytest.approx(2 * 0.5 + 2 * 0.1 + 3.0 + 0.2 + 0.04 + 0.03)
    both = CostsByRows((1, 3), (costs(target=10.0), costs(target=30.0)))
    assert both.at(2).target(1) == pytest.approx(20.0)
    assert both.at(6).target(1) == pytest.approx(60.0)
