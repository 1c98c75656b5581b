"""Costs measured where they arise: in steps of the real loop, trees of many sizes taking turns."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from multidraft.autotune.costs import Costs, Curve
from multidraft.decoding.metrics import Info, Stopwatch
from multidraft.decoding.state import Plan, State
from multidraft.decoding.step import step
from multidraft.decoding.tree import NO_DRAFTS, Tree

Names = tuple[str, ...]
Clock = Callable[[], float]
CHAINS: Names = ("", "1", "1x1x1", "1x1x1x1x1")
UNEVEN: Names = ("4/3,2,1,0", "3/2,1,0/3,2,1", "2/2,1/3,2,1/4,3,2,1,0,0")  # with several draws on a level
ALONE: Names = (*CHAINS, "2x1", "2x1x1x1", "4x1x1", "8x1", "8x1x1", "4x2x2", "4x2x2x1", "8x3", "2x2x2", *UNEVEN)
TOGETHER: Names = ("", "1", "1x1x1", "2x1", "2x1x1", "2x2", "4x1x1", "4x2x1", "3/2,1,0/2,1,0")


@dataclass(frozen=True)
class Sample:
    """The median seconds of steps with one tree."""

    tree: Tree
    draft: float
    target: float
    rest: float

    @property
    def nodes(self) -> int:
        """How many tokens it drafts."""
        return len(self.tree) - 1


def tree_named(name: str) -> Tree:
    """A tree, or the one without drafts."""
    return Tree.parse(name) if name else NO_DRAFTS


def sample(name: str, runs: list[tuple[float, float, float]]) -> Sample:
    """The medians of runs with one tree; the first is there to warm up."""
    return Sample(tree_named(name), *map(median, zip(*(runs[1:] or runs), strict=True)))


def turns(names: Sequence[str], rounds: int) -> Iterator[list[str]]:
    """Every tree once a round, each round in an order of its own."""
    chance = random.Random(0)
    for _ in range(rounds):
        yield chance.sample(names, len(names))


def timed(state: State, plan: Plan, clock: Clock) -> tuple[State, tuple[float, float, float]]:
    """A step, and the seconds of its drafts, of the target's pass, and of the rest."""
    info = watched(state.target.device.type, clock)
    with info.watch.whole():
        state, _ = step(state, plan, info)
    parts = info.watch.seconds
    return state, (parts["draft"], parts["target"], parts["rule"] + parts["cache"] + parts["rest"])


def watched(device: str, clock: Clock) -> Info:
    """A report whose seconds are those of the device."""
    return Info(watch=Stopwatch(synchronise=device == "cuda", clock=clock))


def fitted(samples: list[Sample]) -> Costs:
    """The costs that explain the samples best; one of them must have no drafts."""
    plain = next(sample for sample in samples if not sample.nodes)
    drafting = [sample for sample in samples if sample.nodes]
    shares = [[float(len(one.tree.reads)), float(sum(one.tree.reads)), float(one.tree.groups)] for one in drafting]
    base, wider, draw = explained(shares, [one.draft - plain.draft for one in drafting])
    parts = [[1.0, float(one.nodes), float(one.tree.forks)] for one in drafting]
    step, node, fork = explained(parts, [one.rest for one in drafting])
    target = rising({1 + one.nodes: one.target for one in samples})
    return Costs(
        target, Curve((1, 2), (base + wider, base + 2 * wider)), draw, plain.rest + plain.draft, step, node, fork
    )


def explained(shares: list[list[float]], seconds: list[float]) -> list[float]:
    """The numbers, none below zero, whose sums in these shares come nearest to the seconds, in proportion.

    Where the nearest ones are not all positive, those below zero are left out one by one.
    """
    weight = 1 / np.maximum(seconds, 1e-9)
    left, found = np.array(shares) * weight[:, None], np.zeros(len(shares[0]))
    kept = list(range(len(found)))
    while kept:
        best = np.linalg.lstsq(left[:, kept], np.ones(len(seconds)), rcond=None)[0]
        if best.min() >= 0:
            found[kept] = best
            break
        del kept[int(best.argmin())]
    return found.tolist()


def rising(seconds: dict[int, float]) -> Curve:
    """A curve that never falls: noise must not make a larger pass cheaper."""
    counts = sorted(seconds)
    return Curve(tuple(counts), tuple(np.maximum.accumulate([seconds[count] for count in counts]).tolist()))
