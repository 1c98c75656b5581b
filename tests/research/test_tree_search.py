"""The best tree where it is known in closed form: nodes, levels or acceptance that cost or give nothing."""

import pytest
from multidraft_research.studies.on_models.tree_search import best_tree, common, menu, speed
from plans import costs, rates

from multidraft.decoding.tree import NO_DRAFTS, Tree

DEAR = 1e6


def test_a_useless_draft_is_not_drawn() -> None:
    assert best_tree(rates(0.0, second=0.0), costs(), 1)[0] == NO_DRAFTS


def test_infinitely_dear_nodes_leave_plain_decoding() -> None:
    assert best_tree(rates(0.9), costs(node=DEAR), 1)[0] == NO_DRAFTS


def test_dear_levels_leave_plain_decoding() -> None:
    assert best_tree(rates(0.9), costs(level=DEAR), 1)[0] == NO_DRAFTS


def test_free_nodes_are_drafted_as_many_as_there_can_be_on_one_level() -> None:
    assert best_tree(rates(0.5), costs(level=8.0), 1, depth=1)[0] == Tree.levels([8])


def test_a_perfect_draft_that_is_nearly_free_goes_as_deep_as_it_may() -> None:
    best, rho = best_tree(rates(1.0), costs(level=0.0, node=0.01), 1, depth=6)
    assert best == Tree.levels([1] * 6)
    assert rho == pytest.approx(7 / (10 + 6 * 0.01))


@pytest.mark.parametrize(("accepted", "level"), [(0.8, 1.0), (0.6, 2.0), (0.9, 3.0), (0.3, 2.9)])
def test_a_chain_has_the_best_length(accepted: float, level: float) -> None:
    """Further drafts add nothing, so that tokens and seconds are sums of a series."""
    one = rates(accepted, second=0.0)
    found, rho = best_tree(one, costs(level=level, node=1e-6), 1)
    lengths = {n: sum(accepted**d for d in range(n + 1)) / (10 + n * level) for n in (0, 1, 2, 3, 4, 6, 8)}
    assert rho == pytest.approx(max(lengths.values()), rel=1e-5)
    assert len(found) - 1 == max(lengths, key=lengths.__getitem__)


def test_batches_shrink_trees_to_chains_and_to_none() -> None:
    """The dearer a node is for all rows together, the smaller the tree."""
    sizes = [len(best_tree(rates(0.6), costs(node=node), 16)[0]) for node in (0.0, 0.3, 1.0, 3.0, 30.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 9
    assert sizes[-1] == 1


@pytest.mark.parametrize("one", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("price", [costs(level=0.7, node=0.2, more=0.1), costs(level=2.0, node=0.05)])
def test_no_k_config_is_faster_than_what_is_found(one: float, price: object) -> None:
    """All that shrink with depth, up to four drafts a node and 32 nodes."""
    found = rates(one)
    best = best_tree(found, price, 1)[1]
    for first in range(1, 5):
        for second in range(1, first + 1):
            for length in range(5):
                tree = Tree.levels([first, second, *[1] * length])
                if len(tree) <= 33:
                    assert speed(tree, found, price, 1) <= 1.005 * best


def test_the_menu_has_trees_for_harder_and_easier_texts_within_limits() -> None:
    found, price = rates(0.6), costs(level=0.6, node=0.2, more=0.1)
    trees = menu(found, price, 1, nodes=6, depth=3)
    assert NO_DRAFTS in trees
    assert {*trees} > {*common(6, 3)}
    assert max(len(tree) for tree in trees) <= 7
    assert max(tree.depth for tree in trees) <= 3
