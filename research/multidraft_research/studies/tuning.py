"""What a plan predicts beside what is measured: plain decoding, chains, the best tree of every size, and auto."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from multidraft.autotune.auto import Auto, Limits
from multidraft.autotune.best_trees import speed
from multidraft.autotune.learning import contexts
from multidraft.autotune.making import using
from multidraft.autotune.measuring import timed
from multidraft.autotune.pair_plan import PairPlan
from multidraft.autotune.subject import Subject
from multidraft.decoding.shapes import Shape
from multidraft.decoding.tree import Tree

SIZES = (4, 8, 16, 32)  # nodes; of the trees up to each the best takes part
RUN = 12  # steps after one text


@dataclass
class Line:
    """One way to draft at one temperature."""

    temperature: float
    tree: str
    nodes: int
    predicted_tokens: float  # a step
    predicted_speed: float  # tokens a second
    tokens: float = 0.0  # a step, as measured
    speed: float = 0.0
    seconds: float = 0.0  # of all steps measured
    steps: int = 0

    def add(self, tokens: int, seconds: float) -> None:
        """One more step."""
        self.steps, self.seconds = self.steps + 1, self.seconds + seconds
        self.tokens += (tokens - self.tokens) / self.steps
        self.speed = self.tokens * self.steps / self.seconds


def chosen(plan: PairPlan, temperature: float) -> list[Tree]:
    """No drafts, the best chain, and the best tree of each size, by the plan."""
    found, costs = plan.at(temperature), plan.costs.at(1)
    drafting = found.trees[1:]
    chains = [tree for tree in drafting if max(tree.drafts) == 1]
    groups = [chains, *([tree for tree in drafting if len(tree) - 1 <= size] for size in SIZES)]
    best = [max(group, key=lambda tree: speed(tree, found.rates, costs, 1)) for group in groups if group]
    return list(dict.fromkeys([found.trees[0], *best]))


def lines_of(plan: PairPlan, temperature: float) -> list[tuple[Line, Tree | None]]:
    """What takes part; None stands for auto."""
    rates, costs = plan.at(temperature).rates, plan.costs.at(1)
    result: list[tuple[Line, Tree | None]] = []
    for tree in chosen(plan, temperature):
        line = Line(temperature, tree.name or "none", len(tree) - 1, sum(rates.reaches(tree)), 0.0)
        line.predicted_speed = speed(tree, rates, costs, 1)
        result.append((line, tree))
    best = max((line for line, _ in result), key=lambda line: line.predicted_speed)
    auto = Line(temperature, "auto", best.nodes, best.predicted_tokens, best.predicted_speed)
    return [*result, (auto, None)]


@torch.inference_mode()
def compare(
    subject: Subject, plan: PairPlan, temperatures: list[float], steps: int, tick: Callable[[], object]
) -> list[Line]:
    """Every line measured in the real loop, by turns after every text, so that a noisy machine hits all alike."""
    lines = [pair for temperature in temperatures for pair in lines_of(plan, temperature)]
    texts = contexts(subject)  # more places than prompts: greedily, the same text would be counted again and again
    with using(plan.threads):
        for turn in range(max(steps // RUN, 1)):
            for line, tree in lines:
                shape = tree or Auto(plan, line.temperature, Limits())
                for tokens, seconds in run(subject, shape, line.temperature, texts[turn % len(texts)], turn):
                    line.add(tokens, seconds)
                tick()
    return [line for line, _ in lines]


def run(
    subject: Subject, tree: Tree | Shape, temperature: float, text: list[int], seed: int
) -> Iterator[tuple[int, float]]:
    """Tokens and seconds of the steps after a text; the first one warms up."""
    plan = subject.plan(tree, temperature)
    state = subject.begin(plan, [text], seed)
    for index in range(RUN + 1):
        before = state.positions[0]
        state, parts = timed(state, plan, subject.clock)
        if index:
            yield state.positions[0] - before, sum(parts)


def work(plan: PairPlan, temperatures: list[float], steps: int) -> int:
    """How often `compare` ticks."""
    return sum(len(lines_of(plan, temperature)) for temperature in temperatures) * max(steps // RUN, 1)
