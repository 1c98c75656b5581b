"""A plan is made: threads, costs and acceptance, measured with the loop that they are for."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from statistics import median

import torch

from multidraft.autotune.comparing import with_growth
from multidraft.autotune.costs import Costs, CostsByRows
from multidraft.autotune.learning import contexts, learnt
from multidraft.autotune.measuring import ALONE, TOGETHER, fitted, sample, timed, tree_named, turns, watched
from multidraft.autotune.pair_plan import PairPlan
from multidraft.autotune.subject import Subject
from multidraft.models.huggingface import place_of

ROWS = {1: (ALONE, 9), 4: (TOGETHER, 6), 16: (TOGETHER, 4)}  # by rows the trees measured, and the rounds of them
IN_A_ROW = 2  # steps with each tree, of which the last counts: in a run, too, a tree follows its like
SETTLED = 32  # the same without drafts: for dozens of steps, passes over one token go on getting faster (llama.cpp)
THREAD_TREES, THREAD_ROUNDS = ("", "1x1x1"), 5
TEMPERATURES = (0.0, 0.7, 1.0)
CONTEXTS, LEARNING = 40, 100  # units of work, of about a step each

Tick = Callable[[int], object]  # is told how many units of work have been done


def work() -> int:
    """How many units of work a plan takes: steps, more or less."""
    steps = sum(rounds * sum(map(in_a_row, names)) for names, rounds in ROWS.values())
    return steps + CONTEXTS + LEARNING * len(TEMPERATURES)


def in_a_row(name: str) -> int:
    """How many steps with a tree come one after another, of which the last counts."""
    return IN_A_ROW if name else SETTLED


@torch.inference_mode()
def make(subject: Subject, tick: Tick = lambda units: None) -> PairPlan:
    """Measure a pair on this machine, in some hundred steps of the real loop."""
    known, threads = subject.identity, best_threads(subject)
    with using(threads):
        costs = CostsByRows(tuple(ROWS), tuple(measured(subject, rows, tick) for rows in ROWS))
        texts, acceptance = contexts(subject), []
        tick(CONTEXTS)
        for temperature in TEMPERATURES:
            acceptance.append(with_growth(subject, texts, learnt(subject, texts, costs, temperature), costs))
            tick(LEARNING)
    return PairPlan(known, threads, costs, tuple(acceptance), datetime.now(UTC).date().isoformat())


@contextmanager
def using(threads: int | None) -> Iterator[None]:
    """So many threads of torch, and afterwards as many as before; with None as many as there are."""
    before = torch.get_num_threads()
    if threads in (None, before):
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def best_threads(subject: Subject) -> int:
    """The number of threads, of those that torch may use, with which steps take least."""
    allowed = torch.get_num_threads()
    choices = sorted({allowed} | {2**power for power in range(allowed.bit_length()) if 2**power < allowed})
    if len(choices) == 1:
        return allowed
    plans, seconds = [subject.plan(tree_named(name)) for name in THREAD_TREES], dict[int, list[float]]()
    for turn in range(THREAD_ROUNDS):
        for threads in choices:
            with using(threads):
                state = subject.begin(plans[-1], subject.texts(1, turn), turn)
                for plan in plans * 2:
                    state, parts = timed(state, plan, time.perf_counter)
                    seconds.setdefault(threads, []).append(sum(parts))
    return min(choices, key=lambda threads: median(seconds[threads]))


def measured(subject: Subject, rows: int, tick: Tick) -> Costs:
    """The costs with a number of rows."""
    names, rounds = ROWS[rows]
    plans = {name: subject.plan(tree_named(name)) for name in names}
    seconds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    largest, readings = max(plans.values(), key=lambda plan: plan.shape.most_slots), list[float]()
    for turn, order in enumerate(turns(names, rounds)):
        texts, info = subject.texts(rows, turn), watched(place_of(subject.target).type, subject.clock)
        state = subject.begin(largest, texts, turn, info)
        readings.append(info.watch.seconds["draft"] / sum(map(len, texts)))
        for name in order:
            for _ in range(in_a_row(name)):
                state, parts = timed(state, plans[name], subject.clock)
                tick(1)
            seconds[name].append(parts)
    costs = fitted([sample(name, runs) for name, runs in seconds.items()])
    return replace(costs, reading=median(readings[1:] or readings))
