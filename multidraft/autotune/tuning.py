"""A pair is measured for as long as one likes, and what its profile predicts is compared with what steps give."""

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from multidraft.autotune.controller import Auto, Limits, note
from multidraft.autotune.estimates import Work
from multidraft.autotune.growing import kind_of
from multidraft.autotune.plans import Profile, Subject, save
from multidraft.decoding.policy import TreePolicy, policy_of
from multidraft.decoding.prefill import start
from multidraft.decoding.record import StepRecord
from multidraft.decoding.state import DecodeConfig, State
from multidraft.decoding.step import step
from multidraft.decoding.tree import NO_DRAFTS, Tree
from multidraft.sampling.settings import Sampling

PROMPT, SHORTER, RUN = 160, 5, 24  # tokens of a prompt that are read at most, and fewer each time; steps after a text
TREES = {"none": NO_DRAFTS}
TREES |= {name: Tree.parse(name) for name in ("1", "1x1x1", "1x1x1x1x1x1x1", "2x1x1x1", "4x2x2")}
FIXED = 0.5  # of the texts are drafted with one of these, the others with what auto chooses by then
FOREVER = float("inf")  # seconds of measuring, which something else ends

AUTO = "auto"  # what chooses by the profile, beside the trees

Tick = Callable[[float], object]  # is told how many seconds have passed
Track = Callable[[Iterable[int]], Iterable[int]]  # shows how far a loop has come


@torch.inference_mode()
def measure(
    subject: Subject,
    profile: Profile,
    seconds: float | int,
    temperatures: Sequence[float | int] = (0.0, 0.7, 1.0),
    rows: Sequence[int] = (1,),
    tick: Tick = lambda seconds: None,
) -> Profile:
    """Fill a profile by decoding the subject's prompts; temperatures, rows and trees are drawn anew for every text.

    They must not take turns: numbers of turns with a common factor would never meet in some combinations.
    """
    end, chance, kind = time.monotonic() + seconds, random.Random(0), kind_of(subject.draft)
    for turn in itertools.count():
        if (before := time.monotonic()) > end:
            break
        count, temperature, tree = chance.choice(rows), chance.choice(temperatures), chance.choice([*TREES.values()])
        fixed = count in profile.known and chance.random() < FIXED
        policy: Tree | Auto = tree if fixed else Auto(profile, temperature, Limits(), FOREVER, kind)
        for record in steps(subject, policy, temperature, texts(subject, count, turn), turn):
            if fixed:
                note(profile, temperature, record, kind, FOREVER)
            if time.monotonic() > end and profile.known:
                break
        tick(time.monotonic() - before)
    save(profile)
    return profile


def texts(subject: Subject, rows: int, turn: int) -> list[list[int]]:
    """So many prompts, which are others every turn; when all have been read, they end a few tokens earlier."""
    rounds, prompts = turn * rows // len(subject.prompts), subject.prompts
    chosen = [prompts[(turn * rows + row) % len(prompts)] for row in range(rows)]
    return [prompt[: len(prompt) - SHORTER * rounds % len(prompt)][-PROMPT:] for prompt in chosen]


def steps(
    subject: Subject, tree: Tree | TreePolicy, temperature: float | int, prompts: list[list[int]], seed: int
) -> Iterator[StepRecord]:
    """The steps after some prompts; the first two warm up."""
    policy = policy_of(tree)
    config = DecodeConfig(subject.scheme, policy, subject.walk, measure=0)
    state = begun(subject, config, temperature, prompts, (RUN + 2) * policy.most_nodes, seed)
    for index in range(RUN + 2):
        state, record = step(state, config)
        if index > 1:
            yield record


def begun(
    subject: Subject, config: DecodeConfig, temperature: float | int, prompts: list[list[int]], room: int, seed: int
) -> State:
    """The prompts have been read, with room for so many tokens more."""
    sampling, generator = [Sampling(temperature=temperature)] * len(prompts), torch.Generator().manual_seed(seed)
    longest = max(map(len, prompts)) + room
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


def lines_of(profile: Profile, temperature: float | int) -> list[Line]:
    """What takes part, with what is expected of it; of auto as much as of the best tree."""
    rates, costs, lines = profile.rates(temperature), profile.costs(1), list[Line]()
    for name, tree in TREES.items():
        tokens = rates.tokens(tree)
        lines.append(Line(temperature, name, len(tree) - 1, tokens, tokens / costs.seconds(Work.of_tree(tree))))
    return [*lines, replace(max(lines, key=lambda line: line.predicted_speed), tree=AUTO)]


@torch.inference_mode()
def compare(
    subject: Subject, profile: Profile, temperatures: Sequence[float | int], count: int, track: Track
) -> list[Line]:
    """Every line measured in the real loop, by turns after every text, so that a noisy machine hits all alike."""
    lines = [line for temperature in temperatures for line in lines_of(profile, temperature)]
    for turn in track(range(max(count // RUN, 1))):
        for line in lines:
            policy = TREES.get(line.tree) or Auto(profile, line.temperature, kind=kind_of(subject.draft))
            for record in steps(subject, policy, line.temperature, texts(subject, 1, turn), turn):
                line.add(sum(len(own.tokens) for own in record.emitted), sum(record.seconds.values()))
    return lines
