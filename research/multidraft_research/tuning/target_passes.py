"""Which tree would pay for a target if drafts were accepted so often: from the target's passes, without a drafter."""

import heapq
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from multidraft.autotune.estimates import DEFAULT, MAX_ACCEPTANCE
from multidraft.decoding.tree import NO_DRAFTS, NodePath, Tree
from multidraft.errors import AdviceError
from multidraft.models.reader import Reader, chain_parents

TOKEN_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16)  # of the passes that are timed; between them costs are interpolated
TEXT_TOKENS = 200  # before a timed pass
MIN_ROUNDS = 3
PLAIN_STEP_SECONDS, DRAFTED_STEP_SECONDS = 0.4e-3, 1.0e-3  # of a step beside all passes, without drafts and with


@dataclass(frozen=True)
class PassCosts:
    """Seconds of a target's passes, by the number of tokens of a chain that they read."""

    seconds: dict[int, float]

    def __call__(self, tokens: int) -> float:
        """The seconds of a pass over so many tokens, at most as many as were timed."""
        return float(np.interp(tokens, [*self.seconds], [*self.seconds.values()]))


@torch.inference_mode()
def time_passes(
    target: Reader, budget: float | int, tick: Callable[[float], object] = lambda seconds: None
) -> PassCosts:
    """Time passes after a text of random tokens, by turns, for about `budget` seconds; medians of the wall clock.

    `tick` is called after every round with the seconds that it took.
    """
    model, times = with_text(target), {count: list[float]() for count in TOKEN_COUNTS}
    start = before = time.perf_counter()
    for finished in itertools.count(1):
        for count, seconds in times.items():
            seconds.append(time_pass(model, count))
        now = time.perf_counter()
        tick(now - before)
        before = now
        if finished >= MIN_ROUNDS and now - start > budget:
            break
    medians = [statistics.median(seconds) for seconds in times.values()]
    return PassCosts(dict(zip(times, np.maximum.accumulate(medians).tolist(), strict=True)))  # more tokens cost no less


def with_text(target: Reader) -> Reader:
    """A reader of the target with one row, which has read a text of random tokens and is warm."""
    model = target.new(TEXT_TOKENS + 2 * max(TOKEN_COUNTS))
    length = min(TEXT_TOKENS, (model.context or 2 * TEXT_TOKENS) - max(TOKEN_COUNTS))
    if length < 1:
        raise AdviceError(
            f"the target reads at most {model.context} tokens; passes over {max(TOKEN_COUNTS)} are timed after a text, "
            "so take a target that reads more"
        )
    text = torch.randint(model.vocabulary, (length,), generator=torch.Generator().manual_seed(0)).tolist()
    model.forward([text], [chain_parents(length)], "none")
    model.commit([list(range(length))])
    for count in TOKEN_COUNTS:
        time_pass(model, count)
    return model


def time_pass(model: Reader, count: int) -> float:
    """The seconds that a chain of so many tokens takes to be read, scored and forgotten."""
    tokens = [token % model.vocabulary for token in range(100, 100 + count)]
    start = time.perf_counter()
    float(model.forward([tokens], [chain_parents(count)]).logits[0, -1, 0])  # waits for a device
    model.commit([[]])
    return time.perf_counter() - start


@dataclass(frozen=True)
class Gain:
    """The tree that would pay most, its expected tokens a step, and times plain decoding."""

    acceptance: float  # of the first draft at a node
    tree: Tree
    tokens: float
    times_plain: float


def best_gain(costs: PassCosts, acceptance: float, drafter_share: float) -> Gain:
    """The best fixed tree if a node's first draft is accepted so often, at every depth alike; none if none is faster.

    With further drafts at a node acceptance grows as in `auto`'s prior, whose probability of a miss is taken to the
    power that fits the first draft. A level costs `drafter_share` of the target's pass over the nodes with drafts.
    """
    plain = 1 / (costs(1) + PLAIN_STEP_SECONDS)
    best = Gain(acceptance, NO_DRAFTS, 1.0, 1.0)
    for depth in range(1, max(TOKEN_COUNTS)):
        for tree, tokens in best_trees(acceptance, depth):
            seconds = DRAFTED_STEP_SECONDS + costs(len(tree)) + drafting_seconds(tree, costs, drafter_share)
            if (times_plain := tokens / seconds / plain) > best.times_plain:
                best = Gain(acceptance, tree, tokens, times_plain)
    return best


def drafting_seconds(tree: Tree, costs: PassCosts, drafter_share: float) -> float:
    """The seconds of the drafter's passes, each over the nodes of a level at which something is drafted."""
    reads = np.bincount([depth for depth, drafts in zip(tree.depths, tree.drafts, strict=True) if drafts])
    return drafter_share * sum(costs(count) for count in reads.tolist())


def best_trees(acceptance: float, depth: int) -> Iterator[tuple[Tree, float]]:
    """For every number of nodes the tree of at most this depth with the most expected tokens a step, and these.

    The k-th draft at a node adds what acceptance gains by it, less than the one before it. So the best tree of n nodes
    is that of n - 1 with the draft that is most likely accepted.
    """
    paths, tokens = list[NodePath](), 1.0
    first = added_acceptance(acceptance, 0)
    candidates: list[tuple[float, float, NodePath]] = [
        (-first, 1.0, (0,))
    ]  # minus the probability to be accepted; its parent's; the path to it
    while candidates and len(paths) < max(TOKEN_COUNTS) - 1:
        minus, parent, path = heapq.heappop(candidates)
        paths.append(path)
        tokens -= minus
        if len(path) < depth:
            heapq.heappush(candidates, (minus * first, -minus, (*path, 0)))
        rank = path[-1] + 1
        heapq.heappush(candidates, (-parent * added_acceptance(acceptance, rank), parent, (*path[:-1], rank)))
        yield Tree.paths(paths), tokens


def added_acceptance(acceptance: float, rank: int) -> float:
    """What the draft of this rank, counted from 0, adds to the acceptance at its node."""
    if rank + 1 >= len(DEFAULT.missing):
        return 0.0
    power = math.log1p(-min(acceptance, MAX_ACCEPTANCE)) / math.log(DEFAULT.missing[1])
    missing = DEFAULT.missing[rank : rank + 2] ** power
    return float(missing[0] - missing[1])
