"""Whole trees: how many tokens each walk accepts, beside the most that any lossless use of the tree could."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from multidraft.auditing.enumeration import Conditional, Forest, all_trees, all_walk_results, first_state
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import Walker, commit, deferred
from multidraft.errors import AdviceError
from multidraft.generation.inputs import check_drafters
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.verification.registry import scheme
from multidraft.verification.scheme import Scheme
from multidraft_research.studies.tree_bound import realised_trees, tree_bound

SCHEMES = (
    "iid:lorenz",
    "anchored:lorenz",
    "without_replacement:recursive_rejection",
    "iid:recursive_rejection",
    "greedy:maximal_coupling",
)
TREES = ("1x1", "1x1x1", "2x1", "3x1", "2x2")
# The last one flips no coin for small claims: every node that could matter is looked at.
WALKERS: dict[str, Walker] = {
    "commit": commit,
    "deferred": deferred,
    "deferred, no coin for small claims": partial(deferred, smallest=0.0),
}
MOST_WAYS = 1_000  # a minute a case
PROMPT = (0,)


@dataclass(frozen=True)
class WalkLine:
    """Accepted tokens a target pass, averaged over random cases: each walk's, and a bound on everyone's."""

    scheme: str
    tree: str
    vocabulary: int
    cases: int
    walks: dict[str, float]
    bound: float
    short: dict[str, float]  # how far each walk is below the bound in its worst case


def jobs(schemes: Sequence[str], trees: Sequence[str], vocabulary: int) -> list[tuple[Scheme, str]]:
    """Every scheme with every tree; raises where it cannot draw the tree, and where that is too much."""
    pairs = [(scheme(name), tree) for tree in trees for name in schemes]
    for s, tree in pairs:
        check_drafters(s, is_list=False)
        StaticTree(Tree.parse(tree)).limits.check(s)
        drawn = sum(Tree.parse(tree).drafts)
        if vocabulary**drawn > MOST_WAYS:
            raise AdviceError(
                f"tree {tree} can be drawn in up to {vocabulary}^{drawn} ways, and {MOST_WAYS:,} are the most that can "
                "be summed up; take --vocabulary 2 or a smaller tree, such as 2x2"
            )
    return pairs


def measure(s: Scheme, tree: str, vocabulary: int, cases: int, seed: int) -> WalkLine:
    """One line of the table."""
    results = [one_case(s, Tree.parse(tree), vocabulary, seed + case) for case in range(cases)]
    walks = {name: sum(accepted[name] for accepted, _ in results) / cases for name in WALKERS}
    short = {name: max(bound - accepted[name] for accepted, bound in results) for name in WALKERS}
    return WalkLine(s.name, tree, vocabulary, cases, walks, sum(bound for _, bound in results) / cases, short)


def one_case(s: Scheme, tree: Tree, vocabulary: int, seed: int) -> tuple[dict[str, float], float]:
    """Expected accepted tokens of every walk over one random case, and the bound."""
    way = DecodeConfig(s), StaticTree(tree)
    target, draft = random_pair(vocabulary, tree.depth + 1, seed)
    models = TableModel(target, vocabulary), TableModel(draft, vocabulary)
    forest = all_trees(first_state(*models, list(PROMPT), *way), *way)

    def conditional(tokens: tuple[int, ...]) -> Tensor:
        return target((*PROMPT, *tokens))

    bound = tree_bound(realised_trees(forest), conditional, vocabulary)
    return {name: accepted_tokens(forest, way[0], walk) for name, walk in WALKERS.items()}, bound


def random_pair(vocabulary: int, depth: int, seed: int) -> tuple[Conditional, Conditional]:
    """A target, and a draft that is half the target and half noise."""
    target, noise = (random_table(vocabulary, depth, 2 * seed + model, 0.7) for model in (0, 1))
    return target, lambda prefix: (target(prefix) + noise(prefix)) / 2


def accepted_tokens(forest: Forest, config: DecodeConfig, walk: Walker) -> float:
    """The expected number of accepted tokens, exactly: over every tree and every answer to every coin."""
    walk_results = all_walk_results(forest.targets, config, walk)
    return sum(forest.probability[tree] * chance * len(walk_result.path) for tree, chance, walk_result in walk_results)
