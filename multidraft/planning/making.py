"""A plan is made: threads, costs and acceptance, measured with the loop that they are for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any

import torch

from multidraft.catalogue import Scheme
from multidraft.decoding.metrics import Info
from multidraft.decoding.prefill import start
from multidraft.decoding.shapes import Shape
from multidraft.decoding.state import Plan, State
from multidraft.decoding.stepping import step
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import Walker
from multidraft.drafting.optimal import optimum
from multidraft.models.causal_lm import Model
from multidraft.numerics.distributions import tempered
from multidraft.planning.best_trees import menu
from multidraft.planning.costs import Costs, CostsByRows
from multidraft.planning.identity import identity
from multidraft.planning.measuring import ALONE, TOGETHER, fitted, sample, timed, tree_named, turns
from multidraft.planning.pair_plan import AtTemperature, PairPlan
from multidraft.planning.positions import Listening, Positions, rates_of
from multidraft.planning.rates import Rates
from multidraft.sampling.settings import Sampling

ROWS = {1: (ALONE, 9), 4: (TOGETHER, 6), 16: (TOGETHER, 4)}  # by rows the trees measured, and the rounds of them
THREAD_TREES, THREAD_ROUNDS = ("", "1x1x1"), 5
TEMPERATURES = (0.0, 0.7, 1.0)
TEMPERS = (1.0, 1.1, 1.25, 1.5)
WORTH_IT = 0.003  # acceptance that another temper must gain: less is noise, and it costs a pass over the vocabulary
LEARNT_WITH, STEPS = "3x2x1x1", 6  # the tree with which acceptance is learnt, and the steps from each prompt
MOST_DRAFTS, MOST_LEVELS = 8, 8
PROMPT, STEPS_LEAVE = 160, 110  # tokens of a prompt that are read at most, and what the steps after it need
NUMBERS, FEWEST, MOST_POSITIONS = 1_000_000, 24, 192  # positions times vocabulary, and the limits of the former
OBSERVED = 20.0  # nodes' worth of the prediction in a factor

Tick = Callable[[int], object]  # is told how many units of work have been done


@dataclass(frozen=True)
class Subject:
    """What a plan is made of."""

    target: Model
    draft: Model
    prompts: list[list[int]]
    scheme: Scheme
    walk: str | Walker

    @property
    def identity(self) -> dict[str, Any]:
        """Which pair, on which machine."""
        return identity(self.target, self.draft, self.scheme, str(self.walk))

    def begin(self, plan: Plan, rows: int, turn: int) -> State:
        """The state after so many prompts, which are others every turn."""
        chosen = [self.prompts[(turn * rows + row) % len(self.prompts)][-PROMPT:] for row in range(rows)]
        longest = max(map(len, chosen)) + STEPS_LEAVE
        return start(chosen, self.target, self.draft, plan, longest, torch.Generator().manual_seed(turn), Info())

    def plan(self, tree: Tree | Shape, temperature: float | int = 1.0) -> Plan:
        """How its steps are made."""
        return Plan(self.scheme, tree, self.walk, Sampling(temperature=temperature), measure=False)


def work() -> int:
    """How many units of work a plan takes: steps, more or less."""
    steps = sum(len(names) * rounds for names, rounds in ROWS.values())
    return steps + (STEPS * 20 + 40) * len(TEMPERATURES)


@torch.inference_mode()
def make(subject: Subject, tick: Tick = lambda units: None) -> PairPlan:
    """Measure a pair on this machine, in some hundred steps of the real loop."""
    known, threads = subject.identity, best_threads(subject)
    with using(threads):
        costs = CostsByRows(tuple(ROWS), tuple(measured(subject, rows, tick) for rows in ROWS))
        acceptance = tuple(learnt(subject, costs, temperature, tick) for temperature in TEMPERATURES)
    return PairPlan(known, threads, costs, acceptance, datetime.now(UTC).date().isoformat())


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
                state = subject.begin(plans[-1], 1, turn)
                for plan in plans * 2:
                    state, parts = timed(state, plan)
                    seconds.setdefault(threads, []).append(sum(parts))
    return min(choices, key=lambda threads: median(seconds[threads]))


def measured(subject: Subject, rows: int, tick: Tick) -> Costs:
    """The costs with a number of rows."""
    names, rounds = ROWS[rows]
    plans = {name: subject.plan(tree_named(name)) for name in names}
    seconds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    largest = max(plans.values(), key=lambda plan: plan.shape.most_slots)
    for turn, order in enumerate(turns(names, rounds)):
        state = subject.begin(largest, rows, turn)
        for name in order:
            state, parts = timed(state, plans[name])
            seconds[name].append(parts)
            tick(1)
    return fitted([sample(name, runs) for name, runs in seconds.items()])


def learnt(subject: Subject, costs: CostsByRows, temperature: float, tick: Tick) -> AtTemperature:
    """What is accepted at a temperature, and the fixed trees that are best for it with any number of rows."""
    positions = Positions()
    plan = subject.plan(Listening(Tree.parse(LEARNT_WITH), positions), temperature)
    turn, wanted = 0, 1
    while len(positions) < wanted and turn < 20:
        state = subject.begin(plan, 1, turn)
        for _ in range(STEPS):
            state, _ = step(state, plan, Info())
        wanted = min(max(NUMBERS // positions.targets[0].shape[-1], FEWEST), MOST_POSITIONS)
        turn += 1
        tick(STEPS)
    tick((20 - turn) * STEPS)
    tempers = best_tempers(subject.scheme, positions) if temperature else [1.0] * (MOST_DRAFTS + 1)
    rates = with_factors(rates_of(subject.scheme, positions, MOST_DRAFTS, tempers), positions)
    trees = dict.fromkeys(tree for rows in costs.rows for tree in menu(rates, costs.at(rows), rows, MOST_LEVELS))
    tick(40)
    return AtTemperature(temperature, rates, [list(tree.drafts) for tree in trees], tempers)


def with_factors(rates: Rates, positions: Positions) -> Rates:
    """The rates with what real steps accepted at every depth beyond them."""
    depths = range(1 + max(depth for depth, *_ in positions.seen))
    above, below = [OBSERVED for _ in depths], [OBSERVED for _ in depths]
    for depth, drafts, weight, claimed in positions.seen:
        above[depth] += claimed
        below[depth] += weight * rates.accepted(min(drafts, rates.most), weight, 0)
    return replace(rates, factors=[one / other for one, other in zip(above, below, strict=True)])


def best_tempers(scheme: Scheme, positions: Positions) -> list[float]:
    """By number of drafts, the temper whose drafts can be accepted most often: the optimum says how often."""
    target, draft = torch.stack(positions.targets), torch.stack(positions.drafts)
    flatter = {temper: tempered(draft, temper) for temper in TEMPERS}
    chosen = [1.0, 1.0]
    for drafts in range(2, MOST_DRAFTS + 1):
        law = scheme.with_drafts(drafts).law
        rate = {temper: float(optimum(target, q, law).mean()) for temper, q in flatter.items()}
        best = max(rate, key=rate.__getitem__)
        chosen.append(best if rate[best] > rate[1.0] + WORTH_IT else 1.0)
    return chosen
