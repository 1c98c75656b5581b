"""What nodes are worth, where the best tree is known: costs and acceptance are made up."""

from dataclasses import replace

import pytest
from plans import costs, predictions, rates

from multidraft.autotune.best_trees import best_tree
from multidraft.autotune.costs import Costs, Curve
from multidraft.autotune.predictions import CLASSES, COUNTS, Predictions
from multidraft.autotune.rates import WEIGHTS, Rates
from multidraft.autotune.worth import REACHES, Prices, Worth, settled

DEPTH = 6
ROOT = [(0, 0, 1.0)]
REAL = costs(12.5, 1.85, 0.1, more=0.13)  # milliseconds, and rates, of the embedded pair at T = 1
MEASURED = Rates(
    [
        [0.0, 0.0, 0.0, 0.0],
        [0.68, 0.773, 0.869, 0.956],
        [0.84, 0.9, 0.938, 0.97],
        [0.904, 0.924, 0.945, 0.98],
        [0.938, 0.956, 0.968, 0.985],
    ],
    [[], [1.0], [0.606, 0.394], [0.477, 0.292, 0.231], [0.352, 0.247, 0.21, 0.191]],
    [[], [0.848], [0.841, 0.811], [0.779, 0.701, 0.696], [0.713, 0.634, 0.658, 0.634]],
)
MOST = len(COUNTS)  # place of the largest number of drafts


def test_where_nothing_costs_anything_everything_is_drafted() -> None:
    found = Worth(predictions(rates(0.5, most=8)), Prices(0.0, 0.0, 0.0), DEPTH)
    assert (found.counts[..., 1:] == MOST).all()
    assert all(gain > 0 for gain in found.ahead([(0, reach) for reach in REACHES[1:]], DEPTH))


def test_where_nodes_are_infinitely_dear_nothing_is_drafted() -> None:
    found = Worth(predictions(rates(0.5)), Prices(1e9, 0.0, 0.0), DEPTH)
    assert not found.counts.any()
    assert not any(found.ahead([(0, reach) for reach in REACHES], DEPTH))


def test_where_drafts_are_never_accepted_nothing_is_drafted_and_plain_decoding_is_as_fast() -> None:
    found, speed = settled(predictions(rates(1e-6, second=1e-6)), costs(10.0, 1.0, 0.1), 1, DEPTH)
    assert not found.counts.any()
    assert speed == pytest.approx(1 / 10.0, rel=2e-3)


def test_where_the_draft_is_perfect_a_chain_is_drafted_to_the_end() -> None:
    found, speed = settled(predictions(rates(1 - 1e-7)), costs(10.0, 1.0, 0.1), 1, DEPTH)
    assert found.drafts(ROOT, DEPTH) == [1]
    assert found.drafts(ROOT, 1) == [1]
    assert speed == pytest.approx((1 + DEPTH) / (10.0 + DEPTH * 1.1), rel=5e-3)


def test_where_levels_are_free_a_node_is_drafted_as_long_as_it_pays() -> None:
    """Of a chain with acceptance a, node d + 1 pays while a^(d + 1) exceeds its price."""
    price, rate = 0.1, 0.6
    found = Worth(predictions(rates(rate, most=1)), Prices(price, 0.0, 0.0), DEPTH)
    for depth in range(DEPTH):
        wanted = found.drafts([(0, 0, rate**depth)], DEPTH - depth)
        assert wanted == [rate ** (depth + 1) > price]


@pytest.mark.parametrize("one", [0.4, 0.7, 0.9])
@pytest.mark.parametrize("node", [0.02, 0.2, 1.0])
@pytest.mark.parametrize("level", [0.3, 1.0, 3.0])
def test_without_confidence_it_is_as_fast_as_the_best_fixed_tree(one: float, node: float, level: float) -> None:
    made_up, known = costs(10.0, level, node, more=0.1), rates(one)
    _, fastest = best_tree(known, made_up, 1, DEPTH)
    _, speed = settled(predictions(known), made_up, 1, DEPTH)
    assert speed == pytest.approx(fastest, rel=0.01)


def test_on_rates_of_a_real_pair_it_is_as_fast_as_the_best_fixed_tree() -> None:
    """Where a walk that defers enters children with less than all, more is accepted there (embedded pair, T = 1)."""
    _, fastest = best_tree(MEASURED, REAL, 1, DEPTH)
    assert settled(predictions(MEASURED), REAL, 1, DEPTH)[1] == pytest.approx(fastest, rel=0.01)


def test_confidence_is_worth_something() -> None:
    """Half of all nodes are nearly certain, the others nearly hopeless, and only who looks knows which."""
    sure = predictions(rates(0.5), slope=2.0)
    found, speed = settled(sure, costs(10.0, 1.0, 0.5), 1, DEPTH)
    means = [0.0] * (MOST + 2)
    for count, mean in zip((0, *COUNTS), sure.acceptance[0].mean(0), strict=True):
        means[count] = float(mean)
    blind = Predictions(replace(sure.rates, acceptance=[[mean] * len(WEIGHTS) for mean in means]), sure.confidence)
    assert speed > 1.1 * settled(blind.flat(), costs(10.0, 1.0, 0.5), 1, DEPTH)[1]
    hopeless, certain = (found.drafts([(0, kind, 1.0)], DEPTH) for kind in (0, CLASSES - 1))
    assert hopeless == [0]
    assert certain == [1]


def test_a_batch_whose_nodes_are_dear_drafts_less() -> None:
    """A row more costs nothing with one token a row, and as much as a pass with more."""
    alone = costs(10.0, 1.0, 0.1)
    together = Costs(Curve((1, 2), (10.0, 26.0)), alone.level, 0.0, 0.0, 0.0, 0.0)
    known = predictions(rates(0.7))
    assert settled(known, alone, 1, DEPTH)[0].drafts(ROOT, DEPTH) > [0]
    assert settled(known, together, 4, DEPTH)[0].drafts(ROOT, DEPTH) == [0]
