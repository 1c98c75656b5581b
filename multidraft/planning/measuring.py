"""Costs measured where they arise: in steps of the real loop, trees of many sizes taking turns."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from multidraft.decoding.metrics import Info, Stopwatch
from multidraft.decoding.state import Plan, State
from multidraft.decoding.stepping import step
from multidraft.decoding.tree import Tree
from multidraft.planning.costs import Costs, Curve

ALONE = ("", "1", "1x1x1", "1x1x1x1x1", "2x1", "2x1x1x1", "4x1x1", "8x1", "8x1x1", "4x2x2", "4x2x2x1", "8x3")
TOGETHER = ("", "1", "1x1x1", "2x1", "2x1x1", "4x1x1", "4x2x1")
WIDTHS = (1, 2, 4, 8, 16)
PARTS = ("draft", "target", "rest")


@dataclass(frozen=True)
class Sample:
    """The median seconds of steps with one tree."""

    reads: tuple[int, ...]  # nodes that the draft model read, by level
    nodes: int
    seconds: dict[str, float]


def tree_named(name: str) -> Tree:
    """A tree, or the one without drafts."""
    return Tree.parse(name) if name else Tree.paths([])


def reads_of(tree: Tree) -> tuple[int, ...]:
    """How many nodes draw on each level."""
    return tuple(sum(len(slots) for _, slots in level) for level in tree.draws)


def turns(names: Sequence[str], rounds: int) -> Iterator[str]:
    """Every tree once a round, each round in an order of its own; the first round is there to warm up."""
    chance = random.Random(0)
    for _ in range(rounds):
        yield from chance.sample(names, len(names))


def samples_of(state: State, plan: Plan, names: Sequence[str], rounds: int) -> tuple[State, list[Sample]]:
    """Steps with trees of different size in turn, from a state that they move on."""
    plans = {name: replace(plan, tree=tree_named(name)) for name in names}
    seconds: dict[str, list[dict[str, float]]] = defaultdict(list)
    synchronise = state.root.device.type == "cuda"
    for name in turns(names, rounds):
        info = Info(watch=Stopwatch(synchronise=synchronise))
        with info.watch.whole():
            state, _ = step(state, plans[name], info)
        parts = info.watch.seconds
        rest = parts["rule"] + parts["cache"] + parts["rest"]
        seconds[name].append(dict(draft=parts["draft"], target=parts["target"], rest=rest))
    return state, [
        Sample(
            reads_of(plans[name].tree),
            len(plans[name].tree) - 1,
            {part: median(run[part] for run in runs[1:] or runs) for part in PARTS},
        )
        for name, runs in seconds.items()
    ]


def fitted(samples: list[Sample]) -> Costs:
    """The costs that explain the samples best."""
    target = {1 + sample.nodes: sample.seconds["target"] for sample in samples}
    plain = min(samples, key=lambda sample: sample.nodes)
    drafting = [sample for sample in samples if sample.nodes]
    level = level_curve(drafting, plain.seconds["draft"])
    nodes = np.array([[1.0, sample.nodes] for sample in drafting])
    rest = np.array([sample.seconds["rest"] for sample in drafting])
    base, slope = np.linalg.lstsq(nodes, rest, rcond=None)[0]
    slope = max(slope, 0.0)
    base = float(np.median(rest - slope * nodes[:, 1]))
    return Costs(rising(sorted(target), target), level, base, float(slope))


def level_curve(samples: list[Sample], nothing: float) -> Curve:
    """Seconds of a level by its width: a straight line."""
    share = np.array([[len(sample.reads), sum(sample.reads)] for sample in samples], dtype=float)
    seconds = np.array([sample.seconds["draft"] - nothing for sample in samples])
    weight = 1 / np.maximum(seconds, 1e-9)  # errors in proportion
    base, slope = np.linalg.lstsq(share * weight[:, None], seconds * weight, rcond=None)[0]
    slope = max(float(slope), 0.0)
    return Curve((1, 2), (float(base) + slope, float(base) + 2 * slope))


def rising(counts: list[int], seconds: dict[int, float]) -> Curve:
    """A curve that never falls: each point at least as high as those before."""
    return Curve(tuple(counts), tuple(np.maximum.accumulate([max(seconds[count], 0.0) for count in counts]).tolist()))
