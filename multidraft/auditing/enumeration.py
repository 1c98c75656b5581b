"""Every way that one decode step can go, with its exact probability: proof by summation that a step is lossless.

It drives the decoder's own parts. Where the decoder draws a tuple, a row becomes one row for every possible tuple (a
forest: all trees at once, as a batch); where a walk flips a coin, the walk runs once with each answer. For tiny
vocabularies and trees only: the number of trees is the number of tuples to the power of the nodes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from multidraft.auditing.endings import all_endings
from multidraft.decoding.draft import Drafted, read_level, stacked
from multidraft.decoding.prefill import start
from multidraft.decoding.state import DecodeConfig, Scored, State, select
from multidraft.decoding.step import score
from multidraft.decoding.tree import NodeLaw, TokenTree
from multidraft.decoding.walks import Ending
from multidraft.models.base import LanguageModel
from multidraft.sampling.settings import Sampling
from multidraft.verification import law as drafting

PLAIN = Sampling()
Law = dict[tuple[int, ...], float]  # probabilities of sequences of tokens
Conditional = Callable[[tuple[int, ...]], Tensor]  # from new tokens to the target's distribution of the next one


@dataclass(frozen=True)
class StepLaw:
    """The law of what one step emits (the accepted path and one more token), and the expected length of that path."""

    law: Law
    accepted: float


@dataclass(frozen=True)
class Forest:
    """Every tree that a step can draw, one a row: where it came from, its probability given that, and its scores."""

    state: State
    scored: Scored
    origin: list[int]
    probability: list[float]


@dataclass(frozen=True)
class Branch:
    """One way that a step can go: the row that it starts from, its probability given that row, and what it emits."""

    origin: int
    probability: float
    emitted: tuple[int, ...]
    tree: int  # its row in the forest
    ending: Ending


def step_law(
    target: LanguageModel, draft: LanguageModel, prompt: list[int], config: DecodeConfig, sampling: Sampling = PLAIN
) -> StepLaw:
    """The exact law of one step after a prompt, for models that have not read anything yet."""
    _, branches = all_branches(first_state(target, draft, prompt, config, sampling), config)
    law: Law = {}
    for branch in branches:
        add(law, branch.emitted, branch.probability)
    return StepLaw(law, sum(branch.probability * len(branch.ending.path) for branch in branches))


def first_state(
    target: LanguageModel,
    draft: LanguageModel,
    prompt: list[int],
    config: DecodeConfig,
    sampling: Sampling = PLAIN,
    whole: bool = False,
) -> State:
    """The state in which the decoder starts after one prompt, which the target may have read as a whole."""
    return start([prompt], target, draft, config, [sampling], len(prompt), torch.Generator(), whole=whole)


def first_tokens(law: Law, conditional: Conditional, count: int) -> Law:
    """The law of the first `count` tokens: longer sequences are cut, shorter ones go on as the target does."""
    result: Law = {}
    for tokens, probability in law.items():
        for more, weight in target_law(conditional, count - len(tokens), tokens).items():
            add(result, (tokens + more)[:count], probability * weight)
    return result


def target_law(conditional: Conditional, count: int, after: tuple[int, ...] = ()) -> Law:
    """The target's own law of the `count` tokens that follow `after`."""
    if count <= 0:
        return {(): 1.0}
    result: Law = {}
    for token, probability in enumerate(conditional(after).tolist()):
        if probability > 0:
            rest = target_law(conditional, count - 1, (*after, token))
            result |= {(token, *tokens): probability * weight for tokens, weight in rest.items()}
    return result


def largest_difference(law: Law, other: Law) -> float:
    """The largest difference between the probabilities that two laws give to a sequence."""
    return max(abs(law.get(tokens, 0.0) - other.get(tokens, 0.0)) for tokens in law | other)


def all_branches(state: State, config: DecodeConfig) -> tuple[Forest, list[Branch]]:
    """All ways in which the next step can go from every row of the state."""
    forest = all_trees(state, config)
    branches = []
    for tree, chance, ending in all_endings(forest.scored, config):
        for token, share in last_tokens(forest.scored, tree, ending):
            emitted = (*(forest.scored.trees[tree].tokens[node] for node in ending.path), token)
            share *= forest.probability[tree] * chance
            branches.append(Branch(forest.origin[tree], share, emitted, tree, ending))
    return forest, branches


def all_trees(state: State, config: DecodeConfig) -> Forest:
    """As `draft_tree` and `score`, but every tuple takes its turn instead of being drawn."""
    law, policy, depth = config.scheme.law, config.policy, 0
    trees = [TokenTree([row.root], law.repeats) for row in state.rows]
    origin, probability = list(range(len(trees))), [1.0] * len(trees)
    drafts = all(row.said is None for row in state.rows)
    while drafts and any(wanted := policy.reads(trees, depth)):
        places = [(row, node) for row, nodes in enumerate(wanted) for node in nodes]
        read_level(state, config, trees, places, depth)
        ways = [all_draws(law, *pair) for pair in zip(trees, policy.counts(trees, depth), strict=True)]
        rows = [row for row, own in enumerate(ways) for _ in own]
        trees = [tree for own in ways for tree, _ in own]
        probability = [probability[row] * chance for row, own in enumerate(ways) for _, chance in own]
        origin, state, depth = [origin[row] for row in rows], select(state, rows), depth + 1
    return Forest(state, score(state, Drafted(trees, depth, {})), origin, probability)


def all_draws(law: drafting.Law, tree: TokenTree, counts: dict[int, int]) -> list[tuple[TokenTree, float]]:
    """The tree with every combination of tuples that can be drawn at nodes of a level, and their probabilities."""
    ways = [(tree.copy(), 1.0)]
    for node, count in sorted(counts.items()):
        found = tuples_at(law.with_drafts(count), tree.laws[node])
        grown = []
        for before, chance in ways:
            for places, weight in found:
                grown.append((before.copy(), chance * weight))
                grown[-1][0].add(node, count, places, [])
        ways = grown
    return ways


def tuples_at(law: drafting.Law, node: NodeLaw) -> list[tuple[list[int], float]]:
    """Every tuple that can be drawn from a node's law, as places in its ids, with its probability."""
    drafted, weight = law.tuples(stacked([node], law.drafts)[0])
    return list(zip(drafted.tolist(), weight.tolist(), strict=True))


def last_tokens(scored: Scored, row: int, ending: Ending) -> list[tuple[int, float]]:
    """The tokens that can come last and their probabilities; -1, as `pick` has it, where no token has any weight."""
    weights = (scored.targets([(row, ending.leaf)])[0] if ending.rest is None else ending.rest.law()).double()
    total = float(weights.sum())
    if total <= 0:
        return [(-1, 1.0)]
    return [(token, weight / total) for token, weight in enumerate(weights.tolist()) if weight > 0]


def add(law: Law, tokens: tuple[int, ...], probability: float) -> None:
    """Add to the probability of a sequence."""
    law[tokens] = law.get(tokens, 0.0) + probability
