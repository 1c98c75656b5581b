"""Acceptance learnt from the nodes that walks try, against what steps really accept."""

import pytest
import torch

import multidraft as md
from multidraft.autotune import learning
from multidraft.autotune.learning import contexts, gathered, with_factors
from multidraft.autotune.positions import Positions, rates_of
from multidraft.autotune.rates import Rates
from multidraft.autotune.subject import Subject
from multidraft.decoding.metrics import Info
from multidraft.decoding.step import step
from multidraft.decoding.tree import Tree
from multidraft.models.table import TableModel, random_table

VOCABULARY, ROWS, STEPS = 6, 40, 40
TREES = ["1", "1x1x1", "2x1x1", "2/1,1/1,0"]


def a_pair() -> Subject:
    target, draft = (TableModel(random_table(VOCABULARY, 2, seed, 0.5), VOCABULARY) for seed in (1, 2))
    return Subject(target, draft, [[token] for token in range(VOCABULARY)], md.scheme("anchored:lorenz"), "deferred")


@pytest.fixture(scope="module")
def positions() -> Positions:
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(learning, "MOST", 1200)
        return gathered(a_pair(), contexts(a_pair()), 1.0)


def rates(positions: Positions) -> Rates:
    return with_factors(rates_of(a_pair().scheme, positions, 3, [1.0] * 4), positions)


def tokens_of(tree: Tree) -> float:
    """The average of many steps, a new token for sure among them."""
    subject = a_pair()
    plan, made = subject.plan(tree), 0
    state = subject.begin(plan, subject.texts(ROWS, 0), 0)
    for _ in range(STEPS):
        state, emitted = step(state, plan, Info())
        made += sum(len(own.tokens) for own in emitted)
    return made / (ROWS * STEPS)


@pytest.mark.parametrize("name", TREES)
def test_predicted_tokens_are_those_that_steps_make(name: str, positions: Positions) -> None:
    tree = Tree.parse(name)
    assert sum(rates(positions).reaches(tree)) == pytest.approx(tokens_of(tree), rel=0.06)  # a standard error is 2 %


def test_nodes_that_are_tried_in_vain_do_not_count(positions: Positions) -> None:
    everything = Positions(positions.targets, positions.drafts, positions.sure, [(0, 1, 1.0, 0.0)] * len(positions))
    with_weights, without = (rates_of(a_pair().scheme, found, 1, [1.0] * 2) for found in (positions, everything))
    assert abs(with_weights.acceptance[1][0] - without.acceptance[1][0]) > 1e-3


def test_learning_is_bounded_by_numbers_not_by_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert learning.enough(Positions()) == 1
    found = Positions(targets=[torch.zeros(100)])
    monkeypatch.setattr(learning, "NUMBERS", 7_000)
    assert learning.enough(found) == 70
    monkeypatch.setattr(learning, "FEWEST", 80)
    assert learning.enough(found) == 80
