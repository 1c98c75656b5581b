"""What trees that grow gain over the best fixed tree: by temperature, costs, kind of text and drafter.

After every text each shape draws its tree, and the tokens that it gives are computed exactly over all coins. Time is
counted in passes of the target: one, and so much for every level of drafts and for every node.
"""

from collections.abc import Iterator
from functools import cache

import torch

from multidraft.autotune.best_trees import menu, speed
from multidraft.autotune.costs import Costs, CostsByRows, Curve
from multidraft.autotune.fitting import confidence_of
from multidraft.autotune.learning import MOST_DRAFTS, contexts, gathered, with_factors
from multidraft.autotune.pilot import Pilot
from multidraft.autotune.positions import rates_of
from multidraft.autotune.predictions import Predictions
from multidraft.autotune.subject import Subject
from multidraft.autotune.trials import Trial, tried
from multidraft.decoding.metrics import Info
from multidraft.decoding.prefill import start
from multidraft.decoding.shapes import Fixed, Shape
from multidraft.decoding.state import State
from multidraft.decoding.step import step
from multidraft.decoding.tree import Tree
from multidraft.generation.defaults import SCHEME
from multidraft.generation.inputs import vocabulary_of
from multidraft.models.huggingface import Model
from multidraft.models.ngram import NGram
from multidraft.verification.registry import scheme
from multidraft.zoo import Pair, kinds
from multidraft_research.studies.on_models.gains import ALL, gains
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Decoding, Panel, Study

TEMPERATURES = (0.0, 0.3, 0.7, 1.0)
COSTS = ((0.12, 0.02), (0.25, 0.02), (0.12, 0.005), (0.05, 0.002), (0.12, 0.04), (0.15, 0.01), (0.005, 0.01))
BEST = 2  # fixed trees for each of the costs, the first by prediction
APART = 2  # steps from one text to the next: acceptance hardly remembers more
BETWEEN = "2x1"  # the tree of those steps
LEVELS, NODES = 8, 32  # of the largest trees
UNTEMPERED = [1.0] * (MOST_DRAFTS + 1)


def measure(asked: Decoding) -> Iterator[Cell]:
    """Every shape after texts that the target goes on with."""
    for name, subject in subjects(asked.pair).items():
        for temperature in TEMPERATURES:
            shapes = shapes_for(asked.pair, name, temperature)
            for trials in compared(asked, subject, shapes, temperature):
                for shape, trial in trials.items():
                    yield from cells(f"{name}, {asked.passage.task}", shape, temperature, trial)


def cells(panel: str, shape: str, temperature: float, trial: Trial) -> Iterator[Cell]:
    """Tokens and time at all costs."""
    for level, node in COSTS:
        time = 1 + level * len(trial.reads) + node * trial.nodes
        yield Cell(panel, f"{named(level, node)}|{shape}", temperature, trial.tokens, time)


def named(level: float, node: float) -> str:
    """What costs are called."""
    return f"level {level:g}, node {node:g}"


@cache
def subjects(pair: Pair) -> dict[str, Subject]:
    """The pair, and its target with counts of the text, with the project's prompts."""
    drafters: dict[str, Model] = {"model": pair.draft, "n-gram": NGram(vocabulary_of(pair.target))}
    texts = kinds.texts(pair.tokenizer)
    return {name: Subject(pair.target, own, texts, scheme(SCHEME), "deferred") for name, own in drafters.items()}


@cache
def places(pair: Pair, drafter: str) -> list[list[int]]:
    """The texts from which is learnt."""
    return contexts(subjects(pair)[drafter])


@cache
def shapes_for(pair: Pair, drafter: str, temperature: float) -> dict[str, Shape]:
    """The best fixed trees for all costs, and for each of them the trees that grow by it."""
    subject = subjects(pair)[drafter]
    positions = gathered(subject, places(pair, drafter), temperature)
    rates = with_factors(rates_of(subject.scheme, positions, MOST_DRAFTS, UNTEMPERED), positions)
    predictions = Predictions(rates, confidence_of(subject.scheme, positions, UNTEMPERED))
    shapes: dict[str, Shape] = {}
    for level, node in COSTS:
        costs = costs_of(level, node)
        trees = [tree for tree in menu(rates, costs, 1, LEVELS) if len(tree) <= 1 + NODES]
        trees.sort(key=lambda tree: -speed(tree, rates, costs, 1))
        shapes |= {tree.name or "none": Fixed(tree) for tree in trees[:BEST]}
        shapes[f"grows by {named(level, node)}"] = Pilot(CostsByRows((1,), (costs,)), predictions, NODES, LEVELS)
    return shapes


def costs_of(level: float, node: float) -> Costs:
    """The same as costs of a step."""
    return Costs(Curve((1, 2), (1.0, 1.0 + node)), Curve((1,), (level,)), 0.0, 0.0, 0.0, 0.0)


@torch.inference_mode()
def compared(
    asked: Decoding, subject: Subject, shapes: dict[str, Shape], temperature: float
) -> Iterator[dict[str, Trial]]:
    """Every shape after each of some texts, which begin with the prompt and end where the target has come to."""
    plans = {name: subject.plan(shape, temperature) for name, shape in shapes.items()}
    between = subject.plan(Tree.parse(BETWEEN), temperature)
    state = begun(asked, subject, shapes, temperature)
    end = state.positions[0] + asked.new_tokens
    while state.positions[0] < end:
        yield {name: tried(state, plan) for name, plan in plans.items()}
        for _ in range(APART):
            state, _ = step(state, between, Info())


def begun(asked: Decoding, subject: Subject, shapes: dict[str, Shape], temperature: float) -> State:
    """The prompt has been read, with room for the largest tree."""
    largest = max(shapes.values(), key=lambda shape: shape.most_slots)
    longest = len(asked.passage.tokens) + asked.new_tokens + APART * len(Tree.parse(BETWEEN))
    generator = torch.Generator().manual_seed(asked.seed)
    plan = subject.plan(largest, temperature)
    return start([asked.passage.tokens], subject.target, subject.draft, plan, longest, generator, Info())


PANELS = [f"{drafter}, {kind}" for drafter in ("model", "n-gram") for kind in (ALL, *kinds.KINDS)]
STUDY = Study(
    paper="no paper: the trees that this project grows",
    panels={name: Panel(f"{name}: growing trees over the best fixed one", "temperature", 1.0, 3) for name in PANELS},
    on_models=measure,
    derived=gains,
)
