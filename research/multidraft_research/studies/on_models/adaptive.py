"""What trees that grow gain over the best fixed tree: by temperature, costs, kind of text and drafter.

After every text each shape draws its tree, and the tokens that it gives are computed exactly over all coins. Time is
counted in passes of the target: one, and so much for every level of drafts and for every node.
"""

import json
from collections.abc import Iterator
from functools import cache

import torch

from multidraft.autotune.estimates import AcceptanceTracker, Costs, TreeRates
from multidraft.autotune.growing_policy import Growing
from multidraft.autotune.plans import MeasuredPair
from multidraft.decoding.policy import StaticTree, TreePolicy
from multidraft.decoding.prefill import read_whole
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.step import step
from multidraft.decoding.tree import Tree
from multidraft.generation import DEFAULT_SCHEME
from multidraft.models.ngram import NGram
from multidraft.models.user_models import as_reader, vocabulary_size
from multidraft.sampling.settings import Sampling
from multidraft.verification.registry import scheme
from multidraft.zoo import FOLDER, Pair
from multidraft_research.studies.on_models.gains import ALL, gains
from multidraft_research.studies.on_models.tree_search import menu, speed
from multidraft_research.studies.on_models.trials import Trial, try_step
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Decoding, Panel, Study
from multidraft_research.tuning.measuring import requests_for, texts

TEXTS = FOLDER / "prompts" / "kinds.jsonl"  # short prompts of three kinds, which take turns
KINDS = ("prose", "code", "lists")
TEMPERATURES = (0.0, 0.3, 0.7, 1.0)
COSTS = ((0.12, 0.02), (0.25, 0.02), (0.12, 0.005), (0.05, 0.002), (0.12, 0.04), (0.15, 0.01), (0.005, 0.01))
BEST = 2  # fixed trees for each of the costs, the first by prediction
APART = 2  # steps from one text to the next: acceptance hardly remembers more
BETWEEN = "2x1"  # the tree of those steps
LEVELS, NODES = 8, 32  # of the largest trees
LEARNT_WITH, STEPS, LEARNT_ROWS = "3x2x1x1", 40, 8  # the tree, steps, and texts side by side from which is learnt


def measure(decoding: Decoding) -> Iterator[Cell]:
    """Every policy after texts that the target goes on with."""
    for name, subject in subjects(decoding.pair).items():
        for temperature in TEMPERATURES:
            policies = policies_for(decoding.pair, name, temperature)
            for trials in compare_policies(decoding, subject, policies, temperature):
                for policy, trial in trials.items():
                    yield from cells(f"{name}, {decoding.passage.task}", policy, temperature, trial)


def cells(panel: str, shape: str, temperature: float, trial: Trial) -> Iterator[Cell]:
    """Tokens and time at all costs."""
    for level, node in COSTS:
        time = costs_of(level, node).seconds(trial.work)
        yield Cell(panel, f"{costs_name(level, node)}|{shape}", temperature, trial.tokens, time)


def costs_name(level: float, node: float) -> str:
    """What costs are called."""
    return f"level {level:g}, node {node:g}"


@cache
def subjects(pair: Pair) -> dict[str, MeasuredPair]:
    """The pair, and its target with counts of the text, with the project's prompts."""
    drafters = {"model": as_reader(pair.draft), "n-gram": NGram(vocabulary_size(pair.target))}
    prompts = [pair.tokenizer.encode(json.loads(line)["prompt"]) for line in TEXTS.read_text().splitlines()]
    return {
        name: MeasuredPair(as_reader(pair.target), drafter, scheme(DEFAULT_SCHEME), "deferred", prompts)
        for name, drafter in drafters.items()
    }


@cache
def policies_for(pair: Pair, drafter: str, temperature: float) -> dict[str, TreePolicy]:
    """The best fixed trees for all costs, and for each of them trees that grow by it."""
    rates, policies = learn_rates(subjects(pair)[drafter], temperature), dict[str, TreePolicy]()
    for level, node in COSTS:
        costs = costs_of(level, node)
        trees = menu(rates, costs, 1, NODES, LEVELS)
        trees.sort(key=lambda tree: -speed(tree, rates, costs, 1))
        policies |= {tree.name or "none": StaticTree(tree) for tree in trees[:BEST]}
        growing = Growing(NODES, LEVELS)
        growing.price(rates, costs, speed(trees[0], rates, costs, 1))
        policies[f"grows by {costs_name(level, node)}"] = growing
    return policies


@torch.inference_mode()
def learn_rates(subject: MeasuredPair, temperature: float) -> TreeRates:
    """The acceptance in steps after the subject's prompts."""
    tracker, policy = AcceptanceTracker(), StaticTree(Tree.parse(LEARNT_WITH))
    for turn in range(-(-len(subject.prompts) // LEARNT_ROWS)):
        prompts = texts(subject, LEARNT_ROWS, turn)
        way = DecodeConfig(subject.scheme, measure=0), policy
        requests = requests_for(prompts, Sampling(temperature), STEPS * policy.limits.max_nodes, turn)
        state = read_whole(requests, subject.target, subject.draft, *way)
        for _ in range(STEPS):
            state, record = step(state, *way)
            tracker.observe(record)
    return tracker.rates(rounds=4)


def costs_of(level: float, node: float) -> Costs:
    """These as costs of a step, whose pass of the target takes one."""
    return Costs(plain=1.0, first=1.0, node=node, level=level)


@torch.inference_mode()
def compare_policies(
    decoding: Decoding, subject: MeasuredPair, policies: dict[str, TreePolicy], temperature: float
) -> Iterator[dict[str, Trial]]:
    """Every policy after each of some texts, which begin with the prompt and end where the target has come to."""
    largest = max(policies, key=lambda name: policies[name].limits.max_nodes)
    room = decoding.new_tokens + APART * len(Tree.parse(BETWEEN)) + policies[largest].limits.max_nodes
    config, between = DecodeConfig(subject.scheme, measure=0), StaticTree(Tree.parse(BETWEEN))
    requests = requests_for([decoding.passage.tokens], Sampling(temperature), room, decoding.seed)
    state = read_whole(requests, subject.target, subject.draft, config, policies[largest])
    end = state.rows[0].position + decoding.new_tokens
    while state.rows[0].position < end:
        yield {name: try_step(state, config, policy) for name, policy in policies.items()}
        for _ in range(APART):
            state, _ = step(state, config, between)


PANELS = [f"{drafter}, {kind}" for drafter in ("model", "n-gram") for kind in (ALL, *KINDS)]
STUDY = Study(
    paper="no paper: the trees that this project grows",
    panels={name: Panel(f"{name}: growing trees over the best fixed one", "temperature", 1.0, 3) for name in PANELS},
    on_models=measure,
    derived=gains,
)
