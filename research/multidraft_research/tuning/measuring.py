"""`multidraft tune`: measures a pair for a given time, and compares what its profile predicts with measured steps."""

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from multidraft.autotune.auto_policy import Auto, TreeLimits
from multidraft.autotune.estimates import Work
from multidraft.autotune.plans import MeasuredPair, Profile, save
from multidraft.autotune.timed_steps import note
from multidraft.decoding.batch import Batch
from multidraft.decoding.policy import TreePolicy, policy_of
from multidraft.decoding.record import StepRecord
from multidraft.decoding.request import Request
from multidraft.decoding.state import DecodeConfig, generators_for
from multidraft.decoding.tree import NO_DRAFTS, Tree
from multidraft.sampling.settings import Sampling

MAX_PROMPT_TOKENS = 160
TOKENS_SHORTER = 5  # a prompt that is read again ends so many tokens earlier
STEPS_PER_TEXT, LATE_STEPS = 24, 3  # that are measured; the second where time is up
TREES = {"none": NO_DRAFTS}
TREES |= {name: Tree.parse(name) for name in ("1", "1x1x1", "1x1x1x1x1x1x1", "2x1x1x1", "4x2x2")}
FIXED_SHARE = 0.5  # of the texts are drafted with one of these trees, the others with auto
UNLIMITED_BUDGET = float("inf")  # a budget in seconds

AUTO = "auto"  # the name of the line whose trees the profile chooses

Tick = Callable[[float], object]  # is called with the seconds that have passed
Track = Callable[[Iterable[int]], Iterable[int]]  # shows the progress of a loop


@torch.inference_mode()
def measure(
    pair: MeasuredPair,
    profile: Profile,
    seconds: float | int,
    temperatures: Sequence[float | int] = (0.0, 0.7, 1.0),
    rows: Sequence[int] = (1,),
    tick: Tick = lambda seconds: None,
) -> Profile:
    """Fill a profile by decoding the pair's prompts; temperatures, rows and trees are drawn at random for every text.

    They must not take turns: if their numbers had a common factor, some combinations would never occur.
    """
    end, rng, kind = time.monotonic() + seconds, random.Random(0), pair.draft.cost
    try:
        for turn in itertools.count():
            if (before := time.monotonic()) > end:
                break
            count, temperature, tree = rng.choice(rows), rng.choice(temperatures), rng.choice([*TREES.values()])
            is_fixed = count in profile.timed_rows and rng.random() < FIXED_SHARE
            profile.check_load()
            policy: Tree | Auto = tree if is_fixed else Auto(profile, temperature, TreeLimits(), UNLIMITED_BUDGET, kind)
            for record in steps(pair, policy, temperature, texts(pair, count, turn), turn):
                if is_fixed:
                    note(profile, record, kind, UNLIMITED_BUDGET)
                if time.monotonic() > end and profile.timed_rows:
                    break
            tick(time.monotonic() - before)
    finally:
        save(profile)  # also of a run that is stopped
    return profile


def texts(pair: MeasuredPair, rows: int, turn: int) -> list[list[int]]:
    """The next prompts of a turn, one a row; when all have been read, they come again a few tokens shorter."""
    rounds, prompts = turn * rows // len(pair.prompts), pair.prompts
    chosen = [prompts[(turn * rows + row) % len(prompts)] for row in range(rows)]
    return [prompt[: len(prompt) - TOKENS_SHORTER * rounds % len(prompt)][-MAX_PROMPT_TOKENS:] for prompt in chosen]


def steps(
    pair: MeasuredPair, tree: Tree | TreePolicy, temperature: float | int, prompts: list[list[int]], seed: int
) -> Iterator[StepRecord]:
    """Records of the steps after prompts; the first two steps warm up and are left out."""
    policy, records = policy_of(tree), list[StepRecord]()
    config = DecodeConfig(pair.scheme, pair.walk, measure=0)
    batch = Batch(pair.target, pair.draft, config, policy, on_record=lambda record, _: records.append(record))
    max_new_tokens = (STEPS_PER_TEXT + 3) * policy.limits.max_nodes
    batch.add(requests_for(prompts, Sampling(temperature=temperature), max_new_tokens, seed))
    for index in range(STEPS_PER_TEXT + 2):
        batch.step()
        if index > 1:
            yield records[-1]


def requests_for(prompts: list[list[int]], sampling: Sampling, max_new_tokens: int, seed: int) -> list[Request]:
    """A request for each prompt, all with the same settings, which nothing but its number of tokens ends."""
    generators = generators_for(torch.Generator().manual_seed(seed), len(prompts))
    pairs = zip(prompts, generators, strict=True)
    return [Request(prompt, max_new_tokens, sampling, generator=generator) for prompt, generator in pairs]


@dataclass
class TreeLine:
    """A row of the table: one tree at one temperature, in a batch of one."""

    temperature: float | int
    tree: str
    nodes: int
    predicted_tokens: float  # per step
    predicted_speed: float  # tokens per second
    tokens: float = 0.0  # per step, as measured
    speed: float = 0.0
    seconds: float = 0.0  # of all measured steps
    steps: int = 0
    turns: list[tuple[int, float]] = field(default_factory=list)  # tokens and seconds after every text

    def add(self, steps: list[tuple[int, float]]) -> None:
        """Add the tokens and seconds of the steps that were measured after a text."""
        self.turns.append((sum(tokens for tokens, _ in steps), sum(seconds for _, seconds in steps)))
        self.steps += len(steps)
        tokens, self.seconds = (sum(column) for column in zip(*self.turns, strict=True))
        self.tokens, self.speed = tokens / self.steps, tokens / self.seconds


def lines_of(profile: Profile, temperature: float | int) -> list[TreeLine]:
    """The lines to compare, with their predictions; auto is predicted to be as fast as the best tree."""
    rates, costs, lines = profile.rates(temperature), profile.costs(1), list[TreeLine]()
    for name, tree in TREES.items():
        tokens = rates.tokens(tree)
        lines.append(TreeLine(temperature, name, len(tree) - 1, tokens, tokens / costs.seconds(Work.of_tree(tree))))
    return [*lines, replace(max(lines, key=lambda line: line.predicted_speed), tree=AUTO, turns=[])]


@torch.inference_mode()
def compare(
    pair: MeasuredPair,
    profile: Profile,
    seconds: float | int,
    temperatures: Sequence[float | int],
    count: int,
    track: Track,
) -> list[TreeLine]:
    """Measure every line with real steps, by turns after every text, so that a noisy machine affects all alike.

    Where time is up, only whole turns count. Of the first turn those temperatures are left out that were not reached,
    but for the first one, which takes a few steps then.
    """
    end = time.monotonic() + seconds
    lines = [line for temperature in temperatures for line in lines_of(profile, temperature)]
    for turn in track(range(max(count // STEPS_PER_TEXT, 1))):
        measured = dict[int, list[tuple[int, float]]]()
        for place, line in enumerate(lines):
            is_late = time.monotonic() > end
            if is_late and (turn or line.temperature != temperatures[0]):
                break
            policy = TREES.get(line.tree) or Auto(profile, line.temperature, kind=pair.draft.cost)
            records = steps(pair, policy, line.temperature, texts(pair, 1, turn), turn)
            measured[place] = [
                tokens_and_seconds(r) for r in itertools.islice(records, LATE_STEPS if is_late else None)
            ]
        if turn and len(measured) < len(lines):
            break
        unreached = {line.temperature for line in lines[len(measured) :]}
        lines = [line for line in lines if line.temperature not in unreached]
        for place, line in enumerate(lines):
            line.add(measured[place])
        if unreached:
            break
    return lines


def tokens_and_seconds(record: StepRecord) -> tuple[int, float]:
    """What a step has emitted, and taken."""
    return sum(len(row.tokens) for row in record.emitted), sum(record.seconds.values())
