"""Trees that grow where it pays are exact whatever they predict, keep to their limits, and learn."""

import pytest
import torch
from plans import costs, predictions, rates

import multidraft as md
from multidraft.auditing.enumeration import first_tokens, largest_difference, step_law, target_law
from multidraft.autotune.costs import CostsByRows
from multidraft.autotune.pilot import Pilot
from multidraft.autotune.predictions import Predictions
from multidraft.decoding.drafted_tree import DraftTree
from multidraft.decoding.shapes import Growing
from multidraft.decoding.state import Plan
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import WALKS
from multidraft.models.table import TableModel, random_table
from multidraft.zoo import load_pair

EXACT, BIASED = 1e-12, 1e-4
PROMPT, DEPTH = [0], 2
COSTS = CostsByRows((1,), (costs(10.0, 0.2, 0.3),))
UNSURE = predictions(rates(0.6, most=2, second=0.6), slope=1.5)  # more than two drafts never pay


class RowByRow(Growing):
    """A pilot that forgets, asked about each row alone: enumeration makes many rows of one.

    It goes through the levels of the row's tree again, which leads to what was decided there.
    """

    def __init__(self, predicted: Predictions) -> None:
        super().__init__(2, 64)
        self.pilot = Pilot(COSTS, predicted, nodes=63, depth=DEPTH)
        self.seen: set[tuple[int, ...]] = set()

    def again(self, drafts: DraftTree, depth: int, row: int) -> tuple[DraftTree, list[int]]:
        own = drafts.select(torch.tensor([row]))
        self.pilot.seed(1)
        for level in range(depth):
            self.pilot.reads(own, level)
            self.pilot.decided(own, level)
        return own, self.pilot.reads(own, depth)[0]

    def reads(self, drafts: DraftTree, depth: int) -> list[list[int]]:
        return [self.again(drafts, depth, row)[1] for row in range(len(drafts.trees))]

    def decide(self, drafts: DraftTree, depth: int, row: int) -> dict[int, int]:
        own, _ = self.again(drafts, depth, row)
        counts = self.pilot.decided(own, depth)[0]
        self.seen.add((depth, *counts.values()))
        return counts


class LooksAtItself(RowByRow):
    """The mutant: of two tokens at the root it drops the second where the first is the token 0."""

    def reads(self, drafts: DraftTree, depth: int) -> list[list[int]]:
        return super().reads(drafts, depth) if depth < DEPTH else [[] for _ in drafts.trees]

    def extended(self, drafts: DraftTree, depth: int) -> list[Tree]:
        trees = super().extended(drafts, depth)
        if depth == 1:
            drop = drafts.tokens[:, 1] == 0
            drafts.drafted[drop, 0, -1] = -1
            drafts.tokens[drop, 2] = -1
        return trees


def error(name: str, walk: str, shape: Growing) -> float:
    """How far the law of the first three tokens is from the target's."""
    target, draft = (TableModel(random_table(3, 3, seed, 2.0), 3) for seed in (1, 2))
    law = step_law(target, draft, PROMPT, Plan(md.scheme(name), shape, walk, measure=False)).law
    conditional = lambda tokens: target.conditional((*PROMPT, *tokens))  # noqa: E731
    return largest_difference(first_tokens(law, conditional, 3), target_law(conditional, 3))


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("name", ["iid:lorenz", "anchored:lorenz"])
def test_it_has_the_target_law(name: str, walk: str) -> None:
    shape = RowByRow(UNSURE)
    assert error(name, walk, shape) <= EXACT
    assert len(shape.seen) > 2  # trees of several forms


@pytest.mark.parametrize("walk", WALKS)
def test_a_pilot_that_looks_at_a_node_s_own_tokens_is_caught(walk: str) -> None:
    assert error("iid:lorenz", walk, LooksAtItself(UNSURE.flat())) > BIASED


def test_rows_side_by_side_keep_their_tokens_and_limits() -> None:
    """At temperature 0 there is one right answer, whatever is drafted."""
    pair, prompts = load_pair(), [[9, 8, 7, 6, 5], [11]]
    made_up = CostsByRows((1, 4), (costs(10.0, 0.5, 0.1), costs(20.0, 1.0, 0.4)))
    shape = Pilot(made_up, predictions(rates(0.7), slope=1.0), nodes=9, depth=4)
    greedy = dict(temperature=0, max_new_tokens=12, eos_token_id=[])
    together, info = md.generate(pair.target, pair.draft, prompts, tree=shape, **greedy)
    for row, prompt in enumerate(prompts):
        plain, _ = md.generate(pair.target, None, [prompt], **greedy)
        assert together[row].tolist() == plain[0].tolist()
    assert 0 < info.nodes <= 9 * info.row_passes
    assert len(info.shapes) > 1
    assert info.predicted_tokens > info.row_passes


def test_it_learns_that_a_plan_was_too_hopeful() -> None:
    target, draft = (TableModel(random_table(4, 2, seed, 0.1), 4) for seed in (1, 2))
    hopeful = Pilot(COSTS, predictions(rates(0.99)), depth=DEPTH)
    md.generate(target, draft, [[0]], tree=hopeful, max_new_tokens=40, generator=torch.Generator().manual_seed(0))
    assert hopeful.ease.exponent < 0.8


def test_a_seed_repeats_a_run() -> None:
    target, draft = (TableModel(random_table(4, 2, seed, 0.5), 4) for seed in (1, 2))
    runs = [
        md.generate(
            target,
            draft,
            [[0]],
            tree=Pilot(COSTS, UNSURE),
            max_new_tokens=30,
            generator=torch.Generator().manual_seed(3),
        )[0]
        for _ in range(2)
    ]
    assert runs[0][0].tolist() == runs[1][0].tolist()


def test_where_nothing_pays_the_root_still_drafts_one() -> None:
    target, draft = (TableModel(random_table(4, 2, seed, 0.5), 4) for seed in (1, 2))
    dear = CostsByRows((1,), (costs(1.0, 100.0, 100.0),))
    _, info = md.generate(target, draft, [[0]], tree=Pilot(dear, UNSURE), max_new_tokens=8)
    assert info.drafts == info.row_passes
