"""Trees that grow: a node's number of drafts may look at everything but the tokens drawn at that node."""

from collections.abc import Sequence

import pytest
import torch
from decoded import start, tables
from steps import law_error

import multidraft as md
from multidraft.decoding.policy import Plan, PolicyLimits, StaticTree, TreePolicy
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.step import step
from multidraft.decoding.tree import NO_DRAFTS, TokenTree, Tree
from multidraft.decoding.walks import WALKS
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.sampling.settings import Sampling

EXACT, BIASED = 1e-12, 1e-4
VOCABULARY, PROMPT = 2, [0]
SCHEMES = ["iid:lorenz", "anchored:lorenz", "without_replacement:recursive_rejection", "iid:recursive_rejection"]


class Growing(TreePolicy):
    """A tree that grows with what is drawn, as `decide` says."""

    def __init__(self, max_drafts: int, max_nodes: int):
        self.limits = PolicyLimits(max_nodes, range(1, max_drafts + 1))

    def decide(self, row: int, tree: TokenTree, nodes: Sequence[int]) -> Sequence[int]:
        """How many drafts each of a row's nodes of a level gets; it may look at all but the tokens drawn there."""
        raise NotImplementedError

    def plan(self, trees: list[TokenTree], depth: int) -> Plan:
        return Plan([tree.level(depth) if len(tree) < self.limits.max_nodes else [] for tree in trees])

    def counts(self, trees: list[TokenTree], depth: int) -> list[dict[int, int]]:
        read = [[node for node in tree.level(depth) if node in tree.laws] for tree in trees]
        decided = [self.decide(row, *pair) if pair[1] else () for row, pair in enumerate(zip(trees, read, strict=True))]
        return [{n: k for n, k in zip(*pair, strict=True) if k} for pair in zip(read, decided, strict=True)]


class CousinsDecide(Growing):
    """Two drafts at the root; then a node gets drafts by the sum of all tokens drawn so far, wherever they are."""

    def decide(self, row: int, tree: TokenTree, nodes: Sequence[int]) -> list[int]:
        depth, drawn = tree.depths[nodes[0]], sum(tree.tokens[1:])
        return [2 if depth == 0 else (drawn + place) % 3 if depth == 1 else 0 for place in range(len(nodes))]


class ByConfidence(Growing):
    """A draft where the draft model is sure, two where it is not."""

    def decide(self, row: int, tree: TokenTree, nodes: Sequence[int]) -> list[int]:
        sure = [tree.laws[node].confidence for node in nodes]
        return [(1 if most > 0.6 else 2) if tree.depths[nodes[0]] < 2 else 0 for most in sure]


class DeepBeforeShallow(Growing):
    """A chain below the first child where it is the token 0, and nothing below its sibling."""

    def decide(self, row: int, tree: TokenTree, nodes: Sequence[int]) -> list[int]:
        depth = tree.depths[nodes[0]]
        if depth == 0:
            return [2] * len(nodes)
        first = tree.tokens[nodes[0]] == 0
        return [int(first and depth < 3 and place == 0) for place in range(len(nodes))]


class Nothing(Growing):
    """No draft at all: every step is plain decoding, and what the draft model has not read grows."""

    def plan(self, trees: list[TokenTree], depth: int) -> Plan:
        return Plan([[] for _ in trees])


class Sometimes(Growing):
    """Drafts a chain of two where the last known token is 1; elsewhere the draft model reads nothing."""

    def plan(self, trees: list[TokenTree], depth: int) -> Plan:
        return Plan([tree.level(depth) if tree.tokens[0] == 1 and depth < 2 else [] for tree in trees])

    def decide(self, row: int, tree: TokenTree, nodes: Sequence[int]) -> list[int]:
        return [1] * len(nodes)


POLICIES = {kind.__name__: kind(2, 8) for kind in (CousinsDecide, ByConfidence, DeepBeforeShallow)}


class LooksAtItself(Growing):
    """The mutant: it draws two tokens, and keeps the first of them alone where that is the token 0."""

    def decide(self, row: int, tree: TokenTree, nodes: Sequence[int]) -> list[int]:
        return [2 if tree.depths[nodes[0]] == 0 else 0] * len(nodes)

    def counts(self, trees: list[TokenTree], depth: int) -> list[dict[int, int]]:
        for tree in trees if depth == 1 else ():  # what was drawn at the root is known by now
            if tree.tuples[0][0] == 0:
                tree.places[0][-1] = tree.tuples[0][-1] = -1
                tree.children[0] = {0: 1}
        return super().counts(trees, depth)


def error(name: str, walk: str, policy: Growing, vocabulary: int = VOCABULARY, steps: int = 1, count: int = 4) -> float:
    """How far the law of the first tokens is from the target's."""
    (target, draft), way = tables(vocabulary, 4, 0.7), (DecodeConfig(md.scheme(name), walk), policy)
    conditional = lambda tokens: target.conditional((*PROMPT, *tokens))  # noqa: E731
    return law_error(target, draft, PROMPT, way, conditional, steps, count=count)


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", SCHEMES)
def test_growing_trees_have_the_target_law(name: str, policy: str, walk: str) -> None:
    assert error(name, walk, POLICIES[policy]) <= EXACT


@pytest.mark.parametrize("walk", WALKS)
def test_a_shape_that_looks_at_a_node_s_own_tokens_is_caught(walk: str) -> None:
    """Recursive rejection would hide it: its identity holds given each draft in turn."""
    assert error("iid:lorenz", walk, LooksAtItself(2, 4), vocabulary=3) > BIASED


@pytest.mark.parametrize("policy", [Sometimes(1, 4), POLICIES["DeepBeforeShallow"]])
def test_several_steps_have_the_target_law(policy: Growing) -> None:
    """The draft model reads what it has missed, however long that has become."""
    assert error("anchored:lorenz", "deferred", policy, steps=2, count=5) <= EXACT


def test_a_law_that_takes_another_number_of_drafts_is_refused() -> None:
    """Also where the configuration is made by hand."""
    with pytest.raises(md.AdviceError, match="spechub drafts exactly two tokens a node, not 3"):
        StaticTree(Tree.parse("2x3")).limits.check(md.scheme("spechub:spechub"))


class FirstRowDrafts(Growing):
    """Two drafts in the first row, none in the others."""

    def decide(self, row: int, tree: TokenTree, nodes: Sequence[int]) -> list[int]:
        return [2 * (row == 0 and nodes == [0])] * len(nodes)


@pytest.mark.usefixtures("unchecked")
def test_a_row_gets_the_token_that_it_gets_beside_rows_with_drafts() -> None:
    def tokens(policy: TreePolicy) -> list[list[int]]:
        tokens_of_steps = []
        for seed in range(5):
            models = (TableModel(random_table(50, 1, s), 50) for s in (seed, seed + 100))
            way, random = (DecodeConfig(md.scheme("anchored:lorenz")), policy), torch.Generator().manual_seed(seed)
            state = start([[1], [2], [3]], *models, way, [Sampling()] * 3, 9, random)
            tokens_of_steps.append([emitted.tokens for emitted in step(state, *way)[1].emitted][1:])
        return tokens_of_steps

    assert tokens(StaticTree(NO_DRAFTS)) == tokens(FirstRowDrafts(2, 3))


class ShapesByRow(TreePolicy):
    """A shape for each row, as `auto` has one for rows with a seed."""

    def __init__(self, *shapes: str):
        self.policies = [StaticTree(Tree.parse(shape)) for shape in shapes]
        self.limits = PolicyLimits(max(policy.limits.max_nodes for policy in self.policies), range(1, 3))

    def plan(self, trees: list[TokenTree], depth: int) -> Plan:
        return Plan([policy.plan([tree], depth).nodes[0] for policy, tree in zip(self.policies, trees, strict=True)])

    def counts(self, trees: list[TokenTree], depth: int) -> list[dict[int, int]]:
        return [policy.counts([tree], depth)[0] for policy, tree in zip(self.policies, trees, strict=True)]


def test_a_shape_ends_where_other_rows_go_on():
    target, draft = tables(VOCABULARY)
    way = DecodeConfig(md.scheme("iid:lorenz"), measure=0), ShapesByRow("2", "1x1x1")
    state = start([PROMPT] * 2, target, draft, way, [Sampling()] * 2, 8, torch.Generator().manual_seed(0))
    _, record = step(step(state, *way)[0], *way)
    assert [max(tree.depths) for tree in record.trees] == [1, 3]
