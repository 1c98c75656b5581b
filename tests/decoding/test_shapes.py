"""Trees that grow: a node's number of drafts may look at everything but the tokens drawn at that node."""

from collections.abc import Sequence

import pytest
import torch

import multidraft as md
from multidraft.auditing.enumeration import (
    first_state,
    first_tokens,
    largest_difference,
    law_of_steps,
    step_law,
    target_law,
)
from multidraft.decoding.drafted_tree import DraftTree
from multidraft.decoding.shapes import Growing
from multidraft.decoding.state import Plan
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import WALKS
from multidraft.models.table import TableModel, random_table
from multidraft.zoo import load_pair

EXACT, BIASED = 1e-12, 1e-4
VOCABULARY, PROMPT = 2, [0]
SCHEMES = ["iid:lorenz", "anchored:lorenz", "without_replacement:recursive_rejection", "iid:recursive_rejection"]


class CousinsDecide(Growing):
    """Two drafts at the root; then a node gets drafts by the sum of all tokens drawn so far, wherever they are."""

    def counts(self, drafts: DraftTree, depth: int, row: int, nodes: Sequence[int]) -> list[int]:
        drawn = int(drafts.tokens[row, 1:].clamp(min=0).sum())
        return [2 if depth == 0 else (drawn + place) % 3 if depth == 1 else 0 for place in range(len(nodes))]


class ByConfidence(Growing):
    """A draft where the draft model is sure, two where it is not."""

    def counts(self, drafts: DraftTree, depth: int, row: int, nodes: Sequence[int]) -> list[int]:
        here = slice(row, row + 1)
        sure = [float(drafts.distributions(here, [node]).max()) for node in nodes]
        return [(1 if most > 0.6 else 2) if depth < 2 else 0 for most in sure]


class DeepBeforeShallow(Growing):
    """A chain below the first child where it is the token 0, and nothing below its sibling."""

    def counts(self, drafts: DraftTree, depth: int, row: int, nodes: Sequence[int]) -> list[int]:
        if depth == 0 or not nodes:
            return [2] * len(nodes)
        first = int(drafts.tokens[row, nodes[0]]) == 0
        return [int(first and depth < 3 and place == 0) for place in range(len(nodes))]


class Nothing(Growing):
    """No draft at all: every step is plain decoding, and what the draft model has not read grows."""

    def reads(self, drafts: DraftTree, depth: int) -> list[list[int]]:
        return [[] for _ in drafts.trees]


class Sometimes(Growing):
    """Drafts a chain of two where the last known token is 1; elsewhere the draft model reads nothing."""

    def reads(self, drafts: DraftTree, depth: int) -> list[list[int]]:
        wanted = [int(drafts.tokens[row, 0]) == 1 and depth < 2 for row in range(len(drafts.trees))]
        return [drafts.nodes_at(row, depth) if wants else [] for row, wants in enumerate(wanted)]

    def counts(self, drafts: DraftTree, depth: int, row: int, nodes: Sequence[int]) -> list[int]:
        return [int(int(drafts.tokens[row, 0]) == 1 and depth < 2)] * len(nodes)


SHAPES = {kind.__name__: kind(2, 8) for kind in (CousinsDecide, ByConfidence, DeepBeforeShallow)}


class LooksAtItself(Growing):
    """The mutant: it draws two tokens, and keeps the first of them alone where that is the token 0."""

    def counts(self, drafts: DraftTree, depth: int, row: int, nodes: Sequence[int]) -> list[int]:
        return [2 if depth == 0 else 0] * len(nodes)

    def extended(self, drafts: DraftTree, depth: int) -> list[Tree]:
        trees = super().extended(drafts, depth)
        if depth == 1:  # what was drawn at the root is known by now
            for row in range(len(trees)):
                if int(drafts.tokens[row, 1]) == 0:
                    drafts.drafted[row, 0, -1] = -1
                    drafts.tokens[row, 2] = -1
        return trees


def tables(vocabulary: int = VOCABULARY) -> tuple[TableModel, TableModel]:
    return tuple(TableModel(random_table(vocabulary, 4, seed, 0.7), vocabulary) for seed in (1, 2))


def error(name: str, walk: str, shape: Growing, vocabulary: int = VOCABULARY) -> float:
    """How far the law of the first four tokens is from the target's."""
    target, draft = tables(vocabulary)
    law = step_law(target, draft, PROMPT, Plan(md.scheme(name), shape, walk, measure=False)).law
    conditional = lambda tokens: target.conditional((*PROMPT, *tokens))  # noqa: E731
    return largest_difference(first_tokens(law, conditional, 4), target_law(conditional, 4))


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", SCHEMES)
def test_growing_trees_have_the_target_law(name: str, shape: str, walk: str) -> None:
    assert error(name, walk, SHAPES[shape]) <= EXACT


@pytest.mark.parametrize("walk", WALKS)
def test_a_shape_that_looks_at_a_node_s_own_tokens_is_caught(walk: str) -> None:
    """Recursive rejection would hide it: its identity holds given each draft in turn."""
    assert error("iid:lorenz", walk, LooksAtItself(2, 4), vocabulary=3) > BIASED


@pytest.mark.parametrize("shape", [Sometimes(1, 4), SHAPES["DeepBeforeShallow"]])
def test_several_steps_have_the_target_law(shape: Growing) -> None:
    """The draft model reads what it has missed, however long that has become."""
    target, draft = tables()
    plan = Plan(md.scheme("anchored:lorenz"), shape, measure=False)
    law = law_of_steps(first_state(target, draft, PROMPT, plan), plan, 2)
    conditional = lambda tokens: target.conditional((*PROMPT, *tokens))  # noqa: E731
    assert largest_difference(first_tokens(law, conditional, 5), target_law(conditional, 5)) <= EXACT


@pytest.mark.parametrize("shape", [*SHAPES.values(), Nothing(1, 2), Sometimes(2, 4)])
def test_rows_do_not_notice_each_other(shape: Growing) -> None:
    """Trees of different form side by side, on a real pair: the same tokens as alone."""
    pair = load_pair()
    prompts = [[5, 6, 7], [9, 8, 7, 6, 5], [11]]
    plan = dict(tree=shape, temperature=0, max_new_tokens=12, eos_token_id=[])
    together, info = md.generate(pair.target, pair.draft, prompts, **plan)
    for row, prompt in enumerate(prompts):
        plain, _ = md.generate(pair.target, None, [prompt], temperature=0, max_new_tokens=12, eos_token_id=[])
        assert together[row].tolist() == plain[0].tolist()
    assert info.tokens == 36


def test_limits_hold() -> None:
    """No more slots than were said, whatever is asked for."""

    class Greedy(Growing):
        def counts(self, drafts: DraftTree, depth: int, row: int, nodes: Sequence[int]) -> list[int]:
            return [100] * len(nodes)

    target, draft = tables()
    sizes = []

    class Watched(Greedy):
        def extended(self, drafts: DraftTree, depth: int) -> list[Tree]:
            trees = super().extended(drafts, depth)
            sizes.append(len(trees[0]))
            return trees

    md.generate(
        target, draft, [[0], [1]], tree=Watched(3, 9), max_new_tokens=10, generator=torch.Generator().manual_seed(0)
    )
    assert max(sizes) == 9
