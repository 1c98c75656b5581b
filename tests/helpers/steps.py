"""The exact law of several decode steps, one after another."""

from collections.abc import Callable
from functools import cache

from decoded import readers
from torch import Tensor

import multidraft as md
from multidraft.auditing.enumeration import (
    Branch,
    Forest,
    SequenceLaw,
    add,
    all_branches,
    first_state,
    first_tokens,
    largest_difference,
    target_law,
)
from multidraft.decoding.policy import Plan, StaticTree, TreePolicy
from multidraft.decoding.record import Decision
from multidraft.decoding.state import DecodeConfig, State, gather
from multidraft.decoding.step import commit
from multidraft.decoding.targets import Targets
from multidraft.decoding.tree import NodeLaw, TokenTree, Tree
from multidraft.models.reader import Reader
from multidraft.sampling.settings import Sampling
from multidraft.verification.scheme import Scheme

Way = tuple[DecodeConfig, TreePolicy]


def config_of(scheme: str | Scheme, tree: str, walk: str = "deferred") -> Way:
    """Steps with this tree."""
    return DecodeConfig(md.scheme(scheme) if isinstance(scheme, str) else scheme, walk), StaticTree(Tree.parse(tree))


class Told(StaticTree):
    """Wrong: once a tree is drawn, the rule is told that its nodes were drawn from other laws."""

    def __init__(self, tree: Tree, told: Callable[[dict[int, NodeLaw]], dict[int, NodeLaw]]):
        super().__init__(tree)
        self.told = told

    def plan(self, trees: list[TokenTree], depth: int) -> Plan:
        plan = super().plan(trees, depth)
        if not any(plan.nodes):
            for tree in trees:
                tree.laws = self.told(tree.laws)
        return plan


def law_error(
    target: Reader,
    draft: Reader,
    prompt: list[int],
    way: Way,
    conditional: Callable[[tuple[int, ...]], Tensor],
    steps: int = 1,
    sampling: Sampling = Sampling(),  # noqa: B008  # which nobody changes
    count: int = 0,
) -> float:
    """How far the law of the first tokens of some steps is from the target's: `conditional`, by the new tokens."""
    state, known = first_state(*readers(target, draft), prompt, *way, sampling), cache(conditional)
    law = law_of_steps(state, way, steps)
    count = count or steps * (way[1].limits.shape.depth + 1)
    return largest_difference(first_tokens(law, known, count), target_law(known, count))


def law_of_steps(state: State, way: Way, steps: int) -> SequenceLaw:
    """The law of what several steps emit, each of them enumerated from the states that the one before ends in."""
    return laws_of_rows(state, way, steps)[0]


def laws_of_rows(state: State, way: Way, steps: int) -> list[SequenceLaw]:
    """What each row of a batch emits in several steps."""
    laws: list[SequenceLaw] = [{} for _ in state.rows]
    emitted: list[tuple[int, tuple[int, ...], float]] = [(row, (), 1.0) for row in range(len(laws))]
    for _ in range(steps):
        forest, branches = all_branches(state, *way)
        before = [(emitted[branch.origin], branch) for branch in branches]
        emitted = [(row, (*old, *b.emitted), chance * b.probability) for (row, old, chance), b in before]
        state = follow(forest, branches)
    for row, tokens, probability in emitted:
        add(laws[row], tokens, probability)
    return laws


def follow(forest: Forest, branches: list[Branch]) -> State:
    """The state after each of the branches, one a row, so that the next step can be enumerated too."""
    rows = [branch.tree for branch in branches]
    state, targets = gather(forest.state, rows), forest.targets
    logits = None if targets.logits is None else targets.logits[rows]
    decision = Decision(
        [branch.walk_result for branch in branches], [branch.emitted[-1] for branch in branches], [], []
    )
    return commit(state, Targets(state.rows, [targets.trees[row] for row in rows], logits), decision)
