"""Trees that grow where it pays: exact whatever they predict, within their limits, and of the size that pays."""

from dataclasses import replace

import pytest
import torch
from decoded import WANTED, always, records
from plans import costs, profile, rates

import multidraft as md
from multidraft.auditing.enumeration import first_tokens, largest_difference, step_law, target_law
from multidraft.autotune.acceptance import CLASSES, Rates
from multidraft.autotune.controller import Auto, Limits
from multidraft.autotune.costs import Costs, Curve
from multidraft.autotune.growing import Growing, Kind, kind_of
from multidraft.autotune.profile import Profile
from multidraft.decoding.policy import TreePolicy
from multidraft.decoding.prefill import start
from multidraft.decoding.record import StepRecord
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.step import step
from multidraft.decoding.tree import TokenTree
from multidraft.decoding.walks import WALKS
from multidraft.models.base import LanguageModel
from multidraft.models.ensemble import Copying
from multidraft.models.ngram import Lookup
from multidraft.models.table import TableModel, random_table
from multidraft.sampling.settings import Sampling

EXACT, BIASED = 1e-12, 1e-4
FREE = Curve((1,), (0.0,))
CHEAP = costs(10.0, 0.2, 0.3)


def sloped(one: float, slope: float = 2.0) -> Rates:
    """Acceptance that rises with confidence: chances to miss fall by a power between 1 / slope and slope."""
    powers = slope ** torch.linspace(-1, 1, CLASSES, dtype=torch.float64).numpy()
    found = rates(one)
    return replace(found, confidence=powers)


def policy(
    found: Rates, price: Costs, nodes: int = 32, depth: int = 16, rows: int = 1, rho: float = 0.1, kind: Kind = "model"
) -> Growing:
    own = Growing(nodes, depth, kind)
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
def test_auto_has_the_target_law(walk: str) -> None:
    made: Profile = profile(by_rows={1: costs(10.0, 2.0, 0.5)}, found=rates(0.7))
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
    assert len(record.trees[0]) - 1 == max(d for d in range(17) if one**d > price)


@pytest.mark.parametrize(("first", "drafts"), [(0.6, True), (1.2, False)])
def test_a_chain_has_to_pay_for_its_first_node(first: float, drafts: bool) -> None:
    """Nodes cost 0.1, the first one so much: a chain with acceptance 0.6 adds some 0.9 tokens less their prices."""
    shape = policy(
        rates(0.6, second=0.0), Costs(Curve((1, 2, 30), (10, 10 + first, 12.8 + first)), FREE, 0, 0, 0), rho=1
    )
    [record] = records(shape, always(lambda _: WANTED), always(lambda _: WANTED), 1)
    assert (len(record.trees[0]) > 1) == drafts


def drafted_by(draft: LanguageModel, prompt: list[int], price: Costs) -> list[StepRecord]:
    """Steps of a model of ten tokens, whatever it says, after a prompt."""
    config = DecodeConfig(
        md.scheme("anchored:lorenz"), policy(rates(0.6), price, rho=0.1, kind=kind_of(draft)), measure=0
    )
    target = TableModel(random_table(10, 1, 0, 1.0), 10)
    state, found = start([prompt], target, draft, config, [Sampling()], 99, torch.Generator().manual_seed(0)), []
    for _ in range(4):
        state, record = step(state, config)
        found.append(record)
    return found


def test_a_look_up_is_read_for_nothing_and_drafts_a_chain_where_it_matches() -> None:
    dear = costs(10.0, 99.0, 0.1)
    [record, *_] = drafted_by(Lookup(10), [1, 2, 3, 4, 5] * 6 + [1, 2], dear)
    assert record.names[0].count("x") > 8
    [record, *_] = drafted_by(Lookup(10), [1, 2, 3, 4, 5], dear)
    assert record.names[0] == ""


@pytest.mark.parametrize(("level", "asks"), [(0.1, True), (99.0, False)])
def test_copying_asks_its_other_drafter_only_where_that_pays(level: float, asks: bool) -> None:
    found = drafted_by(
        Copying([Lookup(10), TableModel(random_table(10, 1, 1), 10)]), [1, 2, 3], costs(10.0, level, 0.1)
    )
    assert asks == any(law.known is None for record in found for law in record.trees[0].laws.values())
