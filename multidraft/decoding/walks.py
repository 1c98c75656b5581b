"""How a tree of drafts is used once every node has a rule: commit, as in the papers, or deferred, which emits more.

A walk is a coroutine. It yields `(node, weight)` to ask for the rule's verdict at a node with the target scaled to
`weight`, and returns a `WalkResult`. Whoever drives it evaluates rules for many rows at once, or enumerates a whole
tree in a test. `coin(probability)` is its only source of randomness.
"""

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from multidraft.errors import AdviceError, quote
from multidraft.verification.precision import MAX_MISSING_MASS

Coin = Callable[[float], bool]
MIN_PROBABILITY = 1e-12  # a probability below it is rounding
MAX_PARTIAL_SHARE = (
    1 - 2 * MAX_MISSING_MASS
)  # no target is asked for between it and one: a rule could not tell it from a full one
MIN_SHARE = 0.05  # more than halves the nodes that a walk visits; tokens per pass stay within noise (docs/log.md)


class Child(NamedTuple):
    """A drafted token below a node, duplicates added up."""

    node: int
    accept: float  # what it may claim


class Residual:
    """What a rule leaves for the emitted token if it is no draft."""

    @property
    def mass(self) -> float:
        """Its sum, computed when it is first asked for."""
        raise NotImplementedError

    def token_weights(self) -> Float[Tensor, " vocabulary"]:
        """The weight of every token, unnormalised."""
        raise NotImplementedError


@dataclass(frozen=True)
class Verdict:
    """A rule's outcome at a node: its distinct drafted children with what each may claim, and what is left."""

    children: tuple[Child, ...]  # in the order in which they were first drawn
    residual: Residual

    @property
    def residual_mass(self) -> float:
        """The probability of a token that is no draft."""
        return self.residual.mass

    @cached_property
    def acceptance(self) -> float:
        """The probability that the emitted token is a drafted one."""
        return math.fsum(child.accept for child in self.children)


@dataclass
class WalkResult:
    """Where a walk ends: the accepted nodes below the root, and what the one more token is drawn from.

    `residual` is None where the path ran into a leaf: the token is then a bonus, drawn from the target at that leaf.
    """

    path: list[int] = field(default_factory=list)
    residual: Residual | None = None

    @property
    def leaf(self) -> int:
        """The last accepted node, or the root."""
        return self.path[-1] if self.path else 0


Walk = Generator[tuple[int, float], Verdict, WalkResult | None]
Queries = dict[int, tuple[int, float]]  # by row a node, and the weight that its target is scaled to
Verdicts = Callable[[Queries], dict[int, Verdict]]  # a row without an answer has ended
Walker = Callable[[int, float, Callable[[int], bool], Coin], Walk]


def deferred(
    node: int,
    weight: float,
    has_drafts: Callable[[int], bool],
    coin: Coin,
    smallest: float = MIN_SHARE,
) -> Walk:
    """Passes through `node` with probability `weight` exactly, deciding only after its children have had their say.

    Each child is entered with the share of the remaining probability that it may claim; what it cannot use comes back
    to the next one (docs/theory.md; on a chain, block verification of Sun et al., 2024). A share below `smallest` is
    first raised to it by a coin: as exact, and most of the nodes that could hardly matter are never looked at. To set
    it, pass `partial(deferred, smallest=0.0)` where a walk is asked for. The largest claim is tried first; an order may
    look at nothing that was drawn below.
    """
    if not has_drafts(node):
        return WalkResult() if coin(weight) else None
    verdict, left = (yield node, weight), 1.0
    for child, accept in sorted(verdict.children, key=lambda child: -child.accept):
        if left <= MIN_PROBABILITY:
            return None
        share = min(accept / left, 1.0)
        entered = max(share, smallest) if share <= MAX_PARTIAL_SHARE else 1.0
        if smallest <= share <= MAX_PARTIAL_SHARE or coin(
            share / entered
        ):  # near one always: rounding must not take a coin
            walk_result = yield from deferred(child, entered, has_drafts, coin, smallest)
            if walk_result is not None:
                walk_result.path.insert(0, child)
                return walk_result
        left -= accept
    return (
        WalkResult(residual=verdict.residual) if left > MIN_PROBABILITY and coin(verdict.residual_mass / left) else None
    )


def commit(node: int, weight: float, has_drafts: Callable[[int], bool], coin: Coin) -> Walk:
    """Picks a child or the residual at every node and never looks back (SpecInfer, SpecTr, Multi-Candidate SD)."""
    if not has_drafts(node):
        return WalkResult()
    verdict, left = (yield node, 1.0), 1.0
    for child, accept in verdict.children:
        if left > MIN_PROBABILITY and coin(accept / left):
            walk_result = yield from commit(child, 1.0, has_drafts, coin)
            assert walk_result is not None  # committing never fails
            walk_result.path.insert(0, child)
            return walk_result
        left -= accept
    # Where the children's claims add up to one but for rounding, nothing is left to draw from: the target stands in.
    return WalkResult(residual=verdict.residual if verdict.residual_mass > MIN_PROBABILITY else None)


WALKS: dict[str, Walker] = {"deferred": deferred, "commit": commit}


def walker(walk: str | Walker) -> Walker:
    """A walk by its name, or one of yours; raises AdviceError on what is none."""
    if walk not in WALKS if isinstance(walk, str) else not callable(walk):
        raise AdviceError(f"unknown walk {quote(walk)}; walks are {', '.join(WALKS)}")
    return WALKS[walk] if isinstance(walk, str) else walk


def drive(walks: list[Walk], verdicts: Verdicts) -> list[WalkResult]:
    """Run the walks of all rows side by side, answering what they ask in one batch a round."""
    if strange := [walk for walk in walks if not isinstance(walk, Generator)]:
        raise AdviceError(f"a walk of yours returns {quote(strange[0])}; write it with `yield node, weight`")
    walk_results: dict[int, WalkResult | None] = {}
    answers: dict[int, Verdict | None] = dict.fromkeys(range(len(walks)))
    while answers:
        queries: Queries = {}
        for row, verdict in answers.items():
            try:
                queries[row] = next(walks[row]) if verdict is None else walks[row].send(verdict)
            except StopIteration as stop:
                if not isinstance(stop.value, WalkResult | None):
                    raise AdviceError(f"a walk of yours ends with {quote(stop.value)}; return a WalkResult") from None
                walk_results[row] = stop.value
        answers = dict(verdicts(queries)) if queries else {}
    # The root passes with probability one; where rounding makes it fail, its target stands in for an empty residual.
    return [walk_results.get(row) or WalkResult() for row in range(len(walks))]
