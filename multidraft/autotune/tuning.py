"""A pair is measured for as long as one likes, and what its profile predicts is compared with what steps give."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from multidraft.autotune.controller import Auto, Limits, note
from multidraft.autotune.growing import kind_of
from multidraft.autotune.profile import Profile
from multidraft.autotune.store import Subject, profile_for, save
from multidraft.decoding.policy import TreePolicy, policy_of
from multidraft.decoding.prefill import start
from multidraft.decoding.record import StepRecord
from multidraft.decoding.state import DecodeConfig, State
from multidraft.decoding.step import step
from multidraft.decoding.tree import NO_DRAFTS, Tree
from multidraft.sampling.settings import Sampling

PROMPT, RUN = 160, 24  # tokens of a prompt that are read at most, and steps after one text
TREES = [
    NO_DRAFTS,
    *map(Tree.parse, ("1", "1x1x1", "1x1x1x1x1x1x1", "2x1x1x1", "4x2x2")),
]  # which auto takes turns with
FOREVER = float("inf")  # seconds of measuring, which something else ends

Tick = Callable[[float], object]  # is told how many seconds have passed


@torch.inference_mode()
def measure(
    subject: Subject,
    profile: Profile,
    seconds: float | int,
    temperatures: Sequence[float | int],
    rows: Sequence[int],
    tick: Tick = lambda seconds: None,
) -> None:
    """Fill a profile by decoding the subject's prompts, by turns with every temperature, number of rows, and tree."""
    end, turn, kind = time.monotonic() + seconds, 0, kind_of(subject.draft)
    while time.monotonic() < end:
        count, before = rows[turn // len(temperatures) % len(rows)], time.monotonic()
        temperature, tree = temperatures[turn % len(temperatures)], TREES[turn % len(TREES)]
        policy: Tree | Auto = tree if turn % 2 == 0 else Auto(profile, temperature, Limits(), FOREVER, kind)
        for record in steps(subject, policy, temperature, texts(subject, count, turn), turn):
            if policy is tree:
                note(profile, temperature, record, kind, FOREVER)
            if time.monotonic() > end and profile.known:
                break
        tick(time.monotonic() - before)
        turn += 1


def measured(
    subject: Subject,
    seconds: float | int,
    temperatures: Sequence[float | int] = (0.0, 0.7, 1.0),
    rows: Sequence[int] = (1,),
    tick: Tick = lambda seconds: None,
) -> Profile:
    """The profile of a pair, filled for so many seconds more, or until it lacks nothing, and kept."""
    profile = profile_for(subject)
    measure(subject, profile, seconds, temperatures, rows, tick)
    save(profile)
    return profile


def texts(subject: Subject, rows: int, turn: int) -> list[list[int]]:
    """So many prompts, which are others every turn."""
    return [subject.prompts[(turn * rows + row) % len(subject.prompts)][-PROMPT:] for row in range(rows)]


def steps(
    subject: Subject, tree: Tree | TreePolicy, temperature: float | int, prompts: list[list[int]], seed: int
) -> Iterator[StepRecord]:
    """The steps after some prompts; the first two warm up."""
    policy = policy_of(tree)
    config = DecodeConfig(subject.scheme, policy, subject.walk, measure=0)
    state = begun(subject, config, temperature, prompts, seed)
    for index in range(RUN + 2):
        state, record = step(state, config)
        if index > 1:
            yield record


def begun(
    subject: Subject, config: DecodeConfig, temperature: float | int, prompts: list[list[int]], seed: int
) -> State:
    """The prompts have been read, with room for the steps that follow."""
    sampling = [Sampling(temperature=temperature) for _ in prompts]
    longest = max(map(len, prompts)) + (RUN + 2) * config.policy.most_nodes
    generator = torch.Generator().manual_seed(seed)
    return start(prompts, subject.target, subject.draft, config, sampling, longest, generator)


@dataclass
class Line:
    """One way to draft at one temperature, one row."""

    temperature: float | int
    tree: str
    nodes: int
    predicted_tokens: float  # a step
    predicted_speed: float  # tokens a second
    tokens: float = 0.0  # a step, as measured
    speed: float = 0.0
    seconds: float = 0.0  # of all steps measured
    steps: int = 0

    def add(self, tokens: int, seconds: float | int) -> None:
        """One more step."""
        self.steps, self.seconds = self.steps + 1, self.seconds + seconds
        self.tokens += (tokens - self.tokens) / self.steps
        self.speed = self.tokens * self.steps / self.seconds


def lines_of(profile: Profile, temperature: float | int) -> list[tuple[Line, Tree | None]]:
    """What takes part; None stands for auto."""
    rates, costs, result = profile.rates(temperature), profile.costs(1), list[tuple[Line, Tree | None]]()
    for tree in TREES:
        tokens = rates.tokens(tree)
        result.append(
            (Line(temperature, tree.name or "none", len(tree) - 1, tokens, tokens / costs.of_tree(tree)), tree)
        )
    best = max((line for line, _ in result), key=lambda line: line.predicted_speed)
    auto = Line(temperature, "auto", best.nodes, best.predicted_tokens, best.predicted_speed)
    return [*result, (auto, None)]


@torch.inference_mode()
def compare(
    subject: Subject, profile: Profile, temperatures: Sequence[float | int], count: int, tick: Callable[[], object]
) -> list[Line]:
    """Every line measured in the real loop, by turns after every text, so that a noisy machine hits all alike."""
    lines = [pair for temperature in temperatures for pair in lines_of(profile, temperature)]
    for turn in range(max(count // RUN, 1)):
        for line, tree in lines:
            policy = tree or Auto(profile, line.temperature, kind=kind_of(subject.draft))
            for record in steps(subject, policy, line.temperature, texts(subject, 1, turn), turn):
                line.add(sum(len(own.tokens) for own in record.emitted), sum(record.seconds.values()))
            tick()
    return [line for line, _ in lines]


def work(temperatures: Sequence[float | int], count: int) -> int:
    """How often `compare` ticks."""
    return len(temperatures) * (len(TREES) + 1) * max(count // RUN, 1)
