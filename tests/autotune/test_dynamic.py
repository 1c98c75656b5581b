"""Trees that grow where it pays: exact whatever they predict, within their limits, and of the size that pays."""

import pytest
import torch
from decoded import WANTED, always, records
from plans import costs, profile, rates

import multidraft as md
from multidraft.auditing.enumeration import first_tokens, largest_difference, step_law, target_law
from multidraft.autotune.acceptance import CLASSES, Rates
from multidraft.autotune.controller import Auto, Limits
from multidraft.autotune.costs import Costs
from multidraft.autotune.dynamic import Growing
from multidraft.autotune.profile import Growth, Profile
from multidraft.decoding.policy import TreePolicy
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import TokenTree
from multidraft.decoding.walks import WALKS
from multidraft.models.table import TableModel, random_table

EXACT, BIASED = 1e-12, 1e-4
CHEAP = costs(10.0, 0.2, 0.3)


def sloped(one: float, slope: float = 2.0) -> Rates:
    """Acceptance that rises with confidence: chances to miss fall by a power between 1 / slope and slope."""
    powers = slope ** torch.linspace(-1, 1, CLASSES, dtype=torch.float64).numpy()
    found = rates(one)
    return Rates(found.missing, found.depth, powers, found.shares)


def policy(found: Rates, price: Costs, nodes: int = 32, depth: int = 8, rows: int = 1, rho: float = 0.1) -> Growing:
    own = Growing(nodes, depth)
    own.price(found, price, rows, rho)
    return own


class LooksAtItself(Growing):
    """The mutant: where the first of two tokens at a node is the token 0, it drops the second."""

    def reads(self, trees: list[TokenTree], depth: int) -> list[list[int]]:
        for tree in trees if depth == 1 else ():
            drafted = tree.tuples.get(0, [])
            if len(tree) == 3 and drafted and drafted[0] == 0:
                dropped = tree.tokens.pop()
                tree.parents.pop()
                tree.depths.pop()
                tree.levels[1].pop()
                del tree.children[0][dropped]
                tree.tuples[0][-1] = tree.places[0][-1] = -1
        return super().reads(trees, depth)


def error(name: str, walk: str, shape: TreePolicy) -> float:
    """How far the law of the first three tokens is from the target's."""
    target, draft = (TableModel(random_table(3, 3, seed, 2.0), 3) for seed in (1, 2))
    law = step_law(target, draft, [0], DecodeConfig(md.scheme(name), shape, walk, measure=0)).law
    conditional = lambda tokens: target.conditional((0, *tokens))  # noqa: E731
    return largest_difference(first_tokens(law, conditional, 3), target_law(conditional, 3))


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("name", ["iid:lorenz", "anchored:lorenz"])
def test_trees_that_grow_have_the_target_law(name: str, walk: str) -> None:
    assert error(name, walk, policy(sloped(0.6), CHEAP, nodes=6, depth=2)) <= EXACT


@pytest.mark.parametrize("walk", WALKS)
def test_a_policy_that_looks_at_a_node_s_own_tokens_is_caught(walk: str) -> None:
    """Two drafts at the root, and none below, where the mutant looks."""
    shape = LooksAtItself(2, 2)
    shape.price(rates(0.6), costs(10.0, 0.0, 0.0), 1, 0.1)
    assert error("iid:lorenz", walk, shape) > BIASED


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("grows", [False, True])
def test_auto_has_the_target_law(walk: str, grows: bool) -> None:
    made: Profile = profile(by_rows={1: costs(10.0, 2.0, 0.5)}, found=rates(0.7))
    made.growth = {1.0: Growth([1.0, 9e9], [10.0, 9e9])} if grows else {}
    assert error("anchored:lorenz", walk, Auto(made, 1.0, Limits(3, 2))) <= EXACT


def test_confidence_decides_how_much_is_drafted() -> None:
    """Where the draft model is sure a long chain is drafted, elsewhere nothing: as of a look-up."""
    sure = torch.tensor([0.98, 0.01, 0.01], dtype=torch.float64)
    unsure = torch.tensor([0.34, 0.33, 0.33], dtype=torch.float64)
    found = sloped(0.5, slope=8.0)
    dear = costs(10.0, 0.1, 3.0)
    long, none = (
        list(records(policy(found, dear), always(lambda _: WANTED), always(lambda _, law=law: law), 4))
        for law in (sure, unsure)
    )
    assert max(len(tree) for record in long for tree in record.trees) >= 6
    assert max(len(tree) for record in none for tree in record.trees) == 1


def test_where_nothing_pays_nothing_is_read() -> None:
    found = list(
        records(
            policy(rates(0.5), costs(1.0, 100.0, 100.0), rho=1.0), always(lambda _: WANTED), always(lambda _: WANTED), 3
        )
    )
    assert all(record.draft_passes == 0 for record in found)


@pytest.mark.parametrize("rows", [1, 3])
def test_limits_hold(rows: int) -> None:
    shape = policy(rates(0.9), costs(10.0, 0.0, 0.0), nodes=5, depth=3, rows=rows)
    for record in records(
        shape, always(lambda _: WANTED), always(lambda _: torch.ones(3, dtype=torch.float64) / 3), 10, rows
    ):
        assert all(len(tree) <= 6 and max(tree.depths) <= 3 for tree in record.trees)


def test_of_a_chain_a_node_is_drafted_as_long_as_it_pays() -> None:
    """With acceptance a, and levels that are free, node d + 1 pays while a^(d + 1) exceeds its price."""
    price, one = 0.1, 0.6
    shape = policy(rates(one, second=0.0), costs(10.0, 0.0, price), rho=1.0)
    [record] = records(shape, always(lambda _: WANTED), always(lambda _: WANTED), 1)
    assert len(record.trees[0]) - 1 == max(d for d in range(9) if one**d > price)
