"""Every way that one decode step can go, with its exact probability: proof by summation that a step is lossless.

It drives the decoder's own parts. Where the decoder draws a tuple, a row becomes one row for every possible tuple (a
forest: all trees at once, as a batch); where a walk flips a coin, the walk runs once with each answer. For tiny
vocabularies and trees only: the number of trees is the number of tuples to the power of the nodes.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from torch import Tensor

from multidraft.decoding.draft import Drafted, read_level, tree_at_root
from multidraft.decoding.policy import TreePolicy
from multidraft.decoding.prefill import read_whole
from multidraft.decoding.request import Request
from multidraft.decoding.state import DecodeConfig, State, gather
from multidraft.decoding.step import score
from multidraft.decoding.targets import Targets
from multidraft.decoding.tree import TokenTree, stack_distributions
from multidraft.decoding.verify import node_outcomes
from multidraft.decoding.walks import Queries, Verdict, Walker, WalkResult, drive, walker
from multidraft.models.reader import Reader
from multidraft.sampling.settings import Sampling
from multidraft.verification import law as drafting

PLAIN = Sampling()
MAX_CERTAIN_GAP = 1e-15  # a coin this close to 0 or 1 has one side
SequenceLaw = dict[tuple[int, ...], float]  # probabilities of sequences of tokens
Conditional = Callable[[tuple[int, ...]], Tensor]  # from new tokens to the target's distribution of the next one


@dataclass(frozen=True)
class StepLaw:
    """The law of what one step emits (the accepted path and one more token), and the expected length of that path."""

    law: SequenceLaw
    accepted: float


@dataclass(frozen=True)
class Forest:
    """Every tree that a step can draw, one a row: where it came from, its probability given that, and its scores."""

    state: State
    targets: Targets
    origin: list[int]
    probability: list[float]


@dataclass(frozen=True)
class Branch:
    """One way that a step can go: the row that it starts from, its probability given that row, and what it emits."""

    origin: int
    probability: float
    emitted: tuple[int, ...]
    tree: int  # its row in the forest
    walk_result: WalkResult


def step_law(
    target: Reader,
    draft: Reader,
    prompt: list[int],
    config: DecodeConfig,
    policy: TreePolicy,
    sampling: Sampling = PLAIN,
) -> StepLaw:
    """The exact law of one step after a prompt, for models that have not read anything yet."""
    _, branches = all_branches(first_state(target, draft, prompt, config, policy, sampling), config, policy)
    law: SequenceLaw = {}
    for branch in branches:
        add(law, branch.emitted, branch.probability)
    return StepLaw(law, sum(branch.probability * len(branch.walk_result.path) for branch in branches))


def first_state(
    target: Reader,
    draft: Reader,
    prompt: list[int],
    config: DecodeConfig,
    policy: TreePolicy,
    sampling: Sampling = PLAIN,
    whole: bool = False,
) -> State:
    """The state in which the decoder starts after one prompt, which the target may have read as a whole."""
    state = read_whole([Request(prompt, 0, sampling)], target, draft, config, policy, whole)
    state.rows[0].longest = math.inf  # no tree is cut; room for more tokens would be made in each branch
    return state


def first_tokens(law: SequenceLaw, conditional: Conditional, count: int) -> SequenceLaw:
    """The law of the first `count` tokens: longer sequences are cut, shorter ones go on as the target does."""
    result: SequenceLaw = {}
    for tokens, probability in law.items():
        for following, weight in target_law(conditional, count - len(tokens), tokens).items():
            add(result, (tokens + following)[:count], probability * weight)
    return result


def target_law(conditional: Conditional, count: int, after: tuple[int, ...] = ()) -> SequenceLaw:
    """The target's own law of the `count` tokens that follow `after`."""
    if count <= 0:
        return {(): 1.0}
    result: SequenceLaw = {}
    for token, probability in enumerate(conditional(after).tolist()):
        if probability > 0:
            following = target_law(conditional, count - 1, (*after, token))
            result |= {(token, *tokens): probability * weight for tokens, weight in following.items()}
    return result


def largest_difference(law: SequenceLaw, other: SequenceLaw) -> float:
    """The largest difference between the probabilities that two laws give to a sequence."""
    return max(abs(law.get(tokens, 0.0) - other.get(tokens, 0.0)) for tokens in law | other)


def add(law: SequenceLaw, tokens: tuple[int, ...], probability: float) -> None:
    """Add to the probability of a sequence."""
    law[tokens] = law.get(tokens, 0.0) + probability


def all_branches(state: State, config: DecodeConfig, policy: TreePolicy) -> tuple[Forest, list[Branch]]:
    """All ways in which the next step can go from every row of the state."""
    forest = all_trees(state, config, policy)
    branches = []
    for tree, chance, walk_result in all_walk_results(forest.targets, config):
        for token, share in last_tokens(forest.targets, tree, walk_result):
            emitted = (*(forest.targets.trees[tree].tokens[node] for node in walk_result.path), token)
            share *= forest.probability[tree] * chance
            branches.append(Branch(forest.origin[tree], share, emitted, tree, walk_result))
    return forest, branches


def all_trees(state: State, config: DecodeConfig, policy: TreePolicy) -> Forest:
    """As `draft_tree` and `score`, but every tuple takes its turn instead of being drawn."""
    law, depth = config.scheme.law, 0
    trees = [tree_at_root(row, law) for row in state.rows]
    origin, probability = list(range(len(trees))), [1.0] * len(trees)
    drafts = all(row.root_logits is None for row in state.rows)
    while drafts and any((plan := policy.plan(trees, depth)).nodes):
        places = [(row, node) for row, nodes in enumerate(plan.nodes) for node in nodes]
        read_level(state, config, policy, trees, places, depth, plan.lookup_only)
        ways = [all_draws(law, *pair) for pair in zip(trees, policy.counts(trees, depth), strict=True)]
        rows = [row for row, row_ways in enumerate(ways) for _ in row_ways]
        trees = [tree for row_ways in ways for tree, _ in row_ways]
        probability = [probability[row] * chance for row, row_ways in enumerate(ways) for _, chance in row_ways]
        origin, state, depth = [origin[row] for row in rows], gather(state, rows), depth + 1
    return Forest(state, score(state, Drafted(trees, depth, {})), origin, probability)


def all_draws(law: drafting.Law, tree: TokenTree, counts: dict[int, int]) -> list[tuple[TokenTree, float]]:
    """The tree with every combination of tuples that can be drawn at nodes of a level, and their probabilities."""
    ways = [(tree, 1.0)]
    for node, count in sorted(counts.items()):
        law_of_count = law.with_drafts(count)
        tuples, weights = law_of_count.tuples(stack_distributions([tree.laws[node]], count)[0])
        grown = []
        for (before, chance), (places, weight) in product(ways, zip(tuples.tolist(), weights.tolist(), strict=True)):
            grown.append((before.copy(), chance * weight))
            grown[-1][0].add(node, count, places, [])
        ways = grown
    return ways


def all_walk_results(
    targets: Targets, config: DecodeConfig, walk: str | Walker | None = None
) -> Iterator[tuple[int, float, WalkResult]]:
    """Where the walks over every row can end, with which probability: rows side by side, one script at a time.

    The walk is that of the configuration unless another is given. No verdict is computed twice.
    """
    begin, known = walker(walk or config.walk), dict[tuple[int, int, float], Verdict]()
    scripts: list[list[tuple[bool, ...]]] = [[()] for _ in targets.trees]

    def verdicts(queries: Queries) -> dict[int, Verdict]:
        keys = {walk: (rows[walk], *question) for walk, question in queries.items()}
        new_queries = {key[0]: key[1:] for key in keys.values() if key not in known}
        outcomes = node_outcomes(config.scheme, targets, new_queries) if new_queries else {}
        known.update({(row, *new_queries[row]): verdict for row, verdict in outcomes.items()})
        return {walk: known[key] for walk, key in keys.items()}

    while rows := [row for row, left in enumerate(scripts) if left]:
        coins = [Script(scripts[row].pop()) for row in rows]
        walks = [begin(0, 1.0, targets.trees[row].has_drafts, coin) for row, coin in zip(rows, coins, strict=True)]
        for row, coin, walk_result in zip(rows, coins, drive(walks, verdicts), strict=True):
            scripts[row] += coin.others
            yield row, coin.probability, walk_result


class Script:
    """A coin that gives the answers written down for it, then True, and keeps track of their probability.

    `others` are the scripts that lead elsewhere from here on.
    """

    def __init__(self, answers: tuple[bool, ...]):
        self.answers = answers
        self.given: tuple[bool, ...] = ()
        self.probability = 1.0
        self.others: list[tuple[bool, ...]] = []

    def __call__(self, probability: float) -> bool:
        """The next answer."""
        written = self.answers[len(self.given) :]
        answer = written[0] if written else probability > MAX_CERTAIN_GAP
        if not written and MAX_CERTAIN_GAP < probability < 1 - MAX_CERTAIN_GAP:
            self.others.append((*self.given, False))
        self.given += (answer,)
        self.probability *= min(probability, 1.0) if answer else 1 - max(probability, 0.0)
        return answer


def last_tokens(targets: Targets, row: int, walk_result: WalkResult) -> list[tuple[int, float]]:
    """The tokens that can come last and their probabilities; -1, as `pick` has it, where no token has any weight."""
    weights = targets.last_weights(row, walk_result).double()
    total = float(weights.sum())
    if total <= 0:
        return [(-1, 1.0)]
    return [(token, weight / total) for token, weight in enumerate(weights.tolist()) if weight > 0]
