"""Whether trees that grow pay: beside the best fixed tree, after the same texts, exactly over coins."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from statistics import fmean, median, stdev

from multidraft.autotune.best_trees import speed
from multidraft.autotune.costs import Costs, CostsByRows
from multidraft.autotune.measuring import timed
from multidraft.autotune.pair_plan import AtTemperature
from multidraft.autotune.pilot import Pilot
from multidraft.autotune.subject import PROMPT, Subject
from multidraft.autotune.trials import Trial, tried
from multidraft.decoding.tree import Tree

TEXTS, STEPS = 5, 4  # at first of so many texts, and of each text so many places
# A fixed tree, one that has grown, and what a level of its real step took more than predicted.
Both = tuple[Trial, Trial, float]


def with_growth(subject: Subject, texts: list[list[int]], known: AtTemperature, costs: CostsByRows) -> AtTemperature:
    """What was learnt at a temperature, with the gain of trees that grow for one row, as far as it must be known."""
    places, found = compared(subject, spread(texts), known, costs), list[Both]()
    while more := list(islice(places, TEXTS * STEPS)):
        found += more
        look = max(median(own for *_, own in found), 0.0)
        gain, noise = gain_of([(fixed, grown) for fixed, grown, _ in found], costs.looking(look).at(1))
        if not 1 - noise <= gain <= 1 + 2 * noise:  # to forgo them takes less doubt than to take them
            break
    return replace(known, look=look, growing=gain, noise=noise)


def spread(texts: list[list[int]]) -> list[list[int]]:
    """All texts, so that the first ones come from everywhere."""
    every = max(len(texts) // TEXTS, 1)
    return [text for first in range(every) for text in texts[first::every]]


def compared(subject: Subject, texts: list[list[int]], known: AtTemperature, costs: CostsByRows) -> Iterator[Both]:
    """Both shapes at some places that real steps lead to; those steps are timed."""
    shape = Pilot(costs, known.predictions)
    growing = subject.plan(shape, known.temperature)
    fixed = subject.plan(best_of(known, costs.at(1)), known.temperature)
    for turn, text in enumerate(texts):
        state = subject.begin(growing, [text[-PROMPT:]], turn)
        for _ in range(STEPS):
            trials = tried(state, fixed), tried(state, growing)
            state, (drafting, *_) = timed(state, growing, subject.clock)
            yield *trials, (drafting - drafted(shape, costs.at(1))) / len(shape.widths)


def drafted(shape: Pilot, costs: Costs) -> float:
    """What the drafts of the step that a shape has just made should have taken, if it had not looked."""
    return sum(map(costs.level, shape.widths)) + costs.draw * shape.draws


def best_of(known: AtTemperature, costs: Costs) -> Tree:
    """The fixed tree that is predicted to be fastest, of those that draft."""
    return max(known.trees[1:], key=lambda tree: speed(tree, known.rates, costs, 1))


def gain_of(found: list[tuple[Trial, Trial]], costs: Costs) -> tuple[float, float]:
    """The speed of trees that grow over that of a fixed one, and its standard error, place by place."""
    tokens = [(fixed.tokens, grown.tokens) for fixed, grown in found]
    seconds = [(fixed.seconds(costs, looks=False), grown.seconds(costs, looks=True)) for fixed, grown in found]
    (a, b), (s, t) = (tuple(map(fmean, zip(*both, strict=True))) for both in (tokens, seconds))
    moves = [own / b - took / t - base / a + had / s for (base, own), (had, took) in zip(tokens, seconds, strict=True)]
    gain = (b / t) / (a / s)
    return gain, gain * stdev(moves) / len(moves) ** 0.5
