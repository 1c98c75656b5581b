"""A tree verified as SGLang asks for it (`eagle_utils`, 0.5.23): for engines that keep their own loop.

A tree is three tables: where a node stands in the flat batch, its first child and its next sibling, -1 where there is
none. Node 0 is the root, the last known token. Row i of `target_probs` and of `draft_probs` says what comes after it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.decoding.verify import accept_masses, check_walk
from multidraft.decoding.walks import Coin, Queries, Residual, Verdict, Walker, WalkResult, drive, walker
from multidraft.errors import AdviceError, is_integer, quote
from multidraft.tensor_trees.batched import Verified, is_batched, verify_batched
from multidraft.transfer import upload
from multidraft.verification.distributions import check_distribution, describe, has_values, pick_each, uniform
from multidraft.verification.outcome import Outcome
from multidraft.verification.precision import FACTOR_BELOW_ONE
from multidraft.verification.registry import scheme as scheme_named
from multidraft.verification.scheme import Scheme

TABLES = ("candidates", "retrieve_index", "retrieve_next_token", "retrieve_next_sibling")
LAST_UNIFORMS = "uniform_samples_for_final_sampling"
MAX_DEPTH = 2**16  # nodes of a path: the answer has room for as many


def verify_tree(
    candidates: Int[Tensor, "rows nodes"],
    retrieve_index: Int[Tensor, "rows nodes"],
    retrieve_next_token: Int[Tensor, "rows nodes"],
    retrieve_next_sibling: Int[Tensor, "rows nodes"],
    target_probs: Float[Tensor, "rows nodes vocabulary"],
    draft_probs: Float[Tensor, "rows inner vocabulary"] | None = None,
    *,
    scheme: str | Scheme | None = None,
    walk: str | Walker = "deferred",
    num_speculative_tokens: int | None = None,
    uniform_samples: Float[Tensor, "rows numbers"] | None = None,
    uniform_samples_for_final_sampling: Float[Tensor, " rows"] | None = None,
    generator: torch.Generator | None = None,
) -> Verified:
    """Accept a path of every row's tree and draw one more token, so that what is emitted has the target's law.

    Returns `predicts`, int32, at each accepted node's place the token that follows it; `accept_index` (rows, depth),
    int32, the places of the root and of the accepted nodes, then -1; and `accept_token_num`, int32, how many drafts
    were accepted, without the one more token. `depth` is `num_speculative_tokens`, or what the deepest tree needs.

    `scheme` says how each node's children were drawn from its row of `draft_probs`, and the rule:
    "without_replacement:recursive_rejection" unless said otherwise, and "top:naive" without `draft_probs`, which is
    exact for the likeliest tokens. How many children a node has may depend on distributions, not on the tokens drawn
    at it. Numbers in [0, 1) are taken from `uniform_samples`, or else from `generator`. Raises AdviceError for tables
    that are no tree, for what is no distribution, and for drafts that their law cannot have drawn. On a device that is
    not the CPU, what `tensor_trees.batched` takes is verified by it: then distributions and drafts are not looked at.

    >>> table = lambda *values: torch.tensor([values])
    >>> p, q = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]), torch.tensor([[[0.5, 0.5]]])
    >>> verify_tree(table(0, 1), table(0, 1), table(1, -1), table(-1, -1), p, q)
    (tensor([1, 0], dtype=torch.int32), tensor([[0, 1]], dtype=torch.int32), tensor([1], dtype=torch.int32))
    """
    tables = (candidates, retrieve_index, retrieve_next_token, retrieve_next_sibling)
    trees, chosen = read_trees(tables, target_probs), resolve_scheme(scheme, draft_probs)
    check_walk(chosen, walk)
    check_drafting(draft_probs, target_probs)
    shape, device = candidates.shape, target_probs.device
    numbers, final = uniform_samples, uniform_samples_for_final_sampling
    numbers = (
        uniform(shape, generator, device) if numbers is None else check_uniforms(numbers, "uniform_samples", *shape)
    )
    final = uniform(shape[:1], generator, device) if final is None else check_uniforms(final, LAST_UNIFORMS, shape[0])
    siblings = siblings_by_depth(trees)
    if not target_probs.is_cpu and is_batched(chosen, walk, siblings):
        depth = check_depth(num_speculative_tokens, 1 + len(siblings))
        on_device: list[Any] = [
            part if part is None else upload(part, device)
            for part in (*tables, target_probs, draft_probs, numbers, final)
        ]
        settings: dict[str, Any] = dict(scheme=chosen, walk=walk, siblings=siblings, num_speculative_tokens=depth)
        return verify_batched(*on_device, **settings)
    walk_results = TreeBatch(trees, target_probs, draft_probs, chosen).walk_trees(
        walk, [Coins(row) for row in numbers.tolist()]
    )
    weights = torch.stack(
        [
            last_token_weights(walk_result, node_targets)
            for walk_result, node_targets in zip(walk_results, target_probs, strict=True)
        ]
    )
    predicts, accepted, counts = answer_tensors(
        trees, walk_results, pick_each(weights, final.tolist()), num_speculative_tokens
    )
    return predicts.to(device), accepted.to(device), counts.to(device)


@dataclass(frozen=True)
class Table:
    """One row's tree: the token and the place in the batch of every node, and its children in their order."""

    tokens: list[int]
    places: list[int]
    children: list[list[int]]

    def has_drafts(self, node: int) -> bool:
        """Whether something was drafted at a node."""
        return bool(self.children[node])


class Coins:
    """Coins from a few uniform numbers: what a flip leaves of its number is uniform again, and waits for its turn."""

    def __init__(self, numbers: Sequence[float]):
        self.numbers = deque(numbers)

    def __call__(self, probability: float) -> bool:
        """Heads with this probability."""
        number, probability = self.numbers.popleft(), min(max(probability, 0.0), 1.0)
        heads = number < probability
        left = number / probability if heads else (number - probability) / max(1 - probability, 1 - FACTOR_BELOW_ONE)
        self.numbers.append(min(left, FACTOR_BELOW_ONE))
        return heads


@dataclass(frozen=True)
class VocabularyResidual(Residual):
    """What a rule leaves of a target."""

    weights: Float[Tensor, " vocabulary"]
    mass: float = 0.0

    def token_weights(self) -> Float[Tensor, " vocabulary"]:
        """The weight of every token."""
        return self.weights


@dataclass(frozen=True)
class TreeBatch:
    """All rows' trees, what the models say at their nodes, and the scheme; called by `drive` for verdicts."""

    trees: list[Table]
    target: Float[Tensor, "rows nodes vocabulary"]
    draft: Float[Tensor, "rows inner vocabulary"] | None
    scheme: Scheme

    def walk_trees(self, walk: str | Walker, coins: Sequence[Coin]) -> list[WalkResult]:
        """Where the walk over every row's tree ends."""
        start = walker(walk)
        return drive([start(0, 1.0, tree.has_drafts, coin) for tree, coin in zip(self.trees, coins, strict=True)], self)

    def __call__(self, queries: Queries) -> dict[int, Verdict]:
        """Verdicts at one node of each row; nodes with as many children go together."""
        siblings = {row: self.trees[row].children[node] for row, (node, _) in queries.items()}
        answers: dict[int, Verdict] = {}
        for count in {len(children) for children in siblings.values()}:
            rows = [row for row, children in siblings.items() if len(children) == count]
            tokens = [[self.trees[row].tokens[node] for node in siblings[row]] for row in rows]
            outcome = self.outcome(rows, queries, torch.tensor(tokens, device=self.target.device))
            parts = zip(outcome.accept.tolist(), outcome.residual, outcome.residual_mass.tolist(), strict=True)
            for row, drawn, (accept, *left) in zip(rows, tokens, parts, strict=True):
                first = dict(zip(reversed(drawn), reversed(siblings[row]), strict=True))  # of equal ones
                answers[row] = Verdict(accept_masses(first, drawn, accept), VocabularyResidual(*left))
        return answers

    def outcome(self, rows: list[int], queries: Queries, drafted: Int[Tensor, "some children"]) -> Outcome:
        """The rule's outcome at a node of each row."""
        nodes, scheme_of_count = [queries[row][0] for row in rows], self.scheme.with_drafts(drafted.shape[-1])
        target = self.target[rows, nodes].double()
        weighted = target * target.new_tensor([[queries[row][1]] for row in rows])
        if self.draft is None:  # as if from the target: the rule does not look at it
            scheme_of_count.check_pair(weighted, target)
            return scheme_of_count.verify(weighted, target, drafted)
        if max(nodes) >= self.draft.shape[1]:
            raise AdviceError(f"draft_probs has no row for node {max(nodes)}, which has children; give one for it")
        return scheme_of_count.outcome(weighted, self.draft[rows, nodes].to(target), drafted)


def check_tensor(values: Any, name: str, use: str) -> None:
    """Raise unless it is a dense tensor of real numbers."""
    if not isinstance(values, Tensor) or not has_values(values) or values.is_complex():
        raise AdviceError(f"{name} is {describe(values)}; give {use}")


def check_uniforms(numbers: Any, name: str, rows: int, columns: int | None = None) -> Tensor:
    """Uniform numbers in float64, one a row or some; raises where they are others, for coins would not be fair."""
    shape = (rows,) if columns is None else (rows, columns)
    check_tensor(numbers, name, use := f"a float tensor of shape {shape} of numbers in [0, 1)")
    fewer = numbers.ndim == 2 == len(shape) and len(numbers) == rows and numbers.shape[1]  # a number serves several
    if not (fewer or numbers.shape == shape) or not numbers.is_floating_point():
        raise AdviceError(f"{name} is {describe(numbers)}; give {use}")
    if len(outside := numbers[~((numbers >= 0) & (numbers < 1))]):
        raise AdviceError(f"{name} has {float(outside[0]):g}; give {use}")
    return numbers.double()


def check_drafting(draft: Any, target: Float[Tensor, "rows nodes vocabulary"]) -> None:
    """Raise unless there are draft distributions for every row, over the target's vocabulary, or none at all."""
    if draft is None:
        return
    use = f"a float tensor ({target.shape[0]}, inner nodes, {target.shape[2]}), a row for each node that has children"
    check_tensor(draft, "draft_probs", use)
    expected = target.shape[0], draft.shape[1] if draft.ndim == 3 else 0, target.shape[2]
    if draft.shape != expected or not draft.is_floating_point():
        raise AdviceError(f"draft_probs is {describe(draft)}; give {use}")


def read_trees(tables: Sequence[Tensor], target: Tensor) -> list[Table]:
    """The tree of every row; raises where shapes do not fit, and where a table leads nowhere or to a node twice."""
    for name, table in zip(TABLES, tables, strict=True):
        check_tensor(table, name, "a tensor of integers (rows, nodes)")
    shape = tables[0].shape
    wrong = [t for t in tables if t.shape != shape or t.is_floating_point() or t.dtype == torch.bool]
    if len(shape) != 2 or not shape.numel() or wrong:
        raise AdviceError(
            f"the tables have shapes {[tuple(t.shape) for t in tables]}; give four of integers (rows, nodes)"
        )
    check_tensor(target, "target_probs", use := f"a float tensor {(*shape, 'vocabulary')}, a row a node")
    if target.ndim != 3 or target.shape[:2] != shape or not target.shape[2] or not target.is_floating_point():
        raise AdviceError(f"target_probs is {describe(target)}; give {use}")
    trees = [Table(row[0], row[1], children_of(*row[2:])) for row in zip(*(t.tolist() for t in tables), strict=True)]
    if sorted(place for tree in trees for place in tree.places) != list(range(shape.numel())):
        raise AdviceError(f"retrieve_index does not hold each place of the batch, 0 to {shape.numel() - 1}, once")
    return trees


def children_of(first: list[int], sibling: list[int]) -> list[list[int]]:
    """The children of every node, in their order."""
    children: list[list[int]] = [[] for _ in first]
    seen = {0, -1}
    for node, children_of_node in enumerate(children):
        child = first[node]
        while child != -1:
            if child in seen or not 0 <= child < len(first):
                raise AdviceError(f"node {child}, listed below node {node}, makes no tree; every node has one parent")
            seen.add(child)
            children_of_node.append(child)
            child = sibling[child]
    return children


def siblings_by_depth(trees: list[Table]) -> tuple[int, ...]:
    """The largest number of children of any node at each depth, of all rows."""
    most, levels = list[int](), [[0] for _ in trees]
    while any(levels):
        counts = [len(tree.children[node]) for tree, level in zip(trees, levels, strict=True) for node in level]
        most.append(max(counts))
        pairs = zip(trees, levels, strict=True)
        levels = [[child for node in level for child in tree.children[node]] for tree, level in pairs]
    return tuple(most[:-1])


def resolve_scheme(name: str | Scheme | None, draft: Tensor | None) -> Scheme:
    """The scheme; raises where the children of a node do not tell all that its law has drawn."""
    chosen = scheme_named(name or ("top:naive" if draft is None else "without_replacement:recursive_rejection"))
    law = chosen.law
    if law.width != law.drafts or law.per_draft_distributions or law.draft_probability < 1:
        raise AdviceError(f"the children of a node do not tell what the law {law.name} has drawn; use iid:lorenz")
    if draft is None and chosen.name != "top:naive":
        raise AdviceError(f"{chosen.name} needs draft_probs, the law that each node's children were drawn from")
    return chosen


def last_token_weights(
    walk_result: WalkResult, target: Float[Tensor, "nodes vocabulary"]
) -> Float[Tensor, " vocabulary"]:
    """What the one more token of a row is drawn from."""
    if walk_result.residual is not None:
        return walk_result.residual.token_weights()
    check_distribution(target[walk_result.leaf].double(), "target_probs")
    return target[walk_result.leaf].double()


def check_depth(depth: int | None, longest: int) -> int:
    """The nodes of a path that the answer has room for; raises where that is no number, or too small."""
    if depth is not None and (not is_integer(depth) or depth > MAX_DEPTH):
        raise AdviceError(f"num_speculative_tokens is {quote(depth)}; give a whole number, at most {MAX_DEPTH}")
    if depth is not None and depth < longest:
        raise AdviceError(f"{longest} nodes do not fit num_speculative_tokens={depth}; give the depth of the trees")
    return longest if depth is None else depth


def answer_tensors(trees: list[Table], walk_results: list[WalkResult], last: list[int], depth: int | None) -> Verified:
    """The paths and the last tokens as tensors."""
    longest = 1 + max(len(walk_result.path) for walk_result in walk_results)
    depth = check_depth(depth, longest)
    predicts = torch.zeros(sum(len(tree.tokens) for tree in trees), dtype=torch.int32)
    accepted = torch.full((len(trees), depth), -1, dtype=torch.int32)
    for row, (tree, walk_result) in enumerate(zip(trees, walk_results, strict=True)):
        places = torch.tensor([tree.places[node] for node in (0, *walk_result.path)])
        predicts[places] = torch.tensor(
            [*(tree.tokens[node] for node in walk_result.path), last[row]], dtype=torch.int32
        )
        accepted[row, : len(places)] = places
    return predicts, accepted, torch.tensor([len(walk_result.path) for walk_result in walk_results], dtype=torch.int32)
