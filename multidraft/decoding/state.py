"""What stays the same over a generation, and what the next step needs of every row."""

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.decoding.tree import TokenTree
from multidraft.decoding.walks import Walker
from multidraft.errors import AdviceError
from multidraft.models.reader import Reader
from multidraft.sampling.settings import Sampling
from multidraft.transfer import upload
from multidraft.verification.scheme import Scheme

RowNode = tuple[int, int]  # a row and a node of its tree
RANDOM_BLOCK_NUMBERS = 64  # random numbers that are made at once: one by one they cost far more
MEASURED_EVERY_STEPS = 16  # every how many steps a run compares its acceptance with the optimum by default
MEASURED_AT_FIRST = 30  # before that in every step: as many are enough for a number that means something


@dataclass(frozen=True)
class DecodeConfig:
    """What stays the same over a generation."""

    scheme: Scheme
    walk: str | Walker = "deferred"
    measure: int = MEASURED_EVERY_STEPS  # compare acceptance with the optimum every so many steps; 0 for never
    synchronise: bool = False  # wait for the GPU after every part of a step, so that time is booked where it belongs
    measure_first: int = 0  # measure every step until it was done so often, and while that is cheap; unless 0, or never


class Randomness:
    """A row's own stream of numbers in [0, 1) with 53 random bits: its tokens do not depend on its neighbours."""

    def __init__(self, generator: torch.Generator, is_seeded: bool = False):
        self.generator, self.is_seeded = generator, is_seeded  # by somebody who expects the same tokens again
        self.block: list[float] = []
        self.taken: list[list[float]] = []  # by a step that may still fail

    def take(self, count: int) -> list[float]:
        """So many numbers."""
        if len(self.block) < count:
            num_new = max(RANDOM_BLOCK_NUMBERS, count)
            numbers = torch.rand(num_new, generator=self.generator, dtype=torch.float64, device=self.generator.device)
            self.block = numbers.tolist() + self.block
        taken, self.block = self.block[len(self.block) - count :], self.block[: len(self.block) - count]
        self.taken.append(taken)
        return taken

    def give_back(self) -> None:
        """Take the same numbers again, since `taken` was emptied: what a failed step was about to emit comes again."""
        while self.taken:
            self.block = self.block + self.taken.pop()

    def number(self) -> float:
        """One number."""
        return self.take(1)[0]


class NodeGroup(NamedTuple):
    """Nodes of rows with the same settings."""

    sampling: Sampling
    lines: list[int]  # where they stand among all that were asked for
    places: list[RowNode]
    prefixes: list[Tensor] | None  # the whole sequences that end there, if the settings look back


@dataclass
class RunningRow:
    """One running sequence."""

    sampling: Sampling
    random: Randomness
    root: int  # its last token, which is in neither cache
    position: int  # of the root
    unread: list[int] = field(default_factory=list)  # the tokens before the root that the draft model has not read
    prefix: Int[Tensor, " length"] | None = None  # all tokens up to the root, if a processor looks at them
    root_logits: Float[Tensor, " vocabulary"] | None = None  # the target's at the root, if it has read that already
    num_logprobs: int | None = None  # log-probabilities of what is emitted, and of so many of the most likely tokens
    longest: float | int = math.inf  # the number of tokens that it may come to

    @property
    def tokens_left(self) -> float | int:
        """How many tokens it may still get."""
        return self.longest - self.position - 1


@dataclass
class State:
    """Both models with their caches, and the rows in them."""

    target: Reader
    draft: Reader | None
    rows: list[RunningRow]
    steps: int = 0  # that have been taken
    used: bool = False  # the models have moved on from it

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Take the state over; a failure leaves caches and random numbers as they were, ready for another try."""
        self.take_over()
        for row in self.rows:
            row.random.taken.clear()
        try:
            yield
        except BaseException:
            for model in self.models:
                model.commit([[] for _ in self.rows])
            for row in self.rows:
                row.random.give_back()
            self.used = False
            raise

    def take_over(self) -> None:
        """Mark the state as used, because its models are about to move on; raise if they already have."""
        if self.used:
            why = "this state has been used, or was interrupted while its caches were written"
            raise AdviceError(f"{why}; go on from the newest one, or start again from the tokens so far")
        self.used = True

    @property
    def models(self) -> list[Reader]:
        """The target, and the draft model if there is one."""
        return [self.target] if self.draft is None else [self.target, self.draft]


def extend(state: State, other: State) -> State:
    """The rows of `state`, then those of `other`; neither can be used any more.

    Both must have been started with the same models. A row keeps its settings, and its tokens depend on its own random
    numbers alone: they are those that it would have without the others.
    """
    if (state.draft is None) != (other.draft is None):
        raise AdviceError("one of the states has a draft model and the other has none; start both with the same models")
    state.take_over()
    other.take_over()
    for model, others in zip(state.models, other.models, strict=True):
        model.extend(others)
    return State(state.target, state.draft, state.rows + other.rows, state.steps)


def gather(state: State, staying: list[int]) -> State:
    """The state of the rows that go on, in this order; the one before cannot be used any more."""
    state.take_over()
    for model in state.models if staying else ():
        model.gather(staying)
    return State(state.target, state.draft, [state.rows[row] for row in staying], state.steps)


def groups_by_settings(rows: list[RunningRow], trees: list[TokenTree], places: list[RowNode]) -> list[NodeGroup]:
    """Nodes of the rows' trees, in groups with the same settings, and the sequences that end at them."""
    groups, node_groups = defaultdict[Sampling, list[int]](list), list[NodeGroup]()
    settings = [rows[row].sampling for row, _ in places]
    if settings and all(sampling is settings[0] for sampling in settings):  # to compare them takes longer
        groups[settings[0]] = list(range(len(places)))
    else:
        for line, sampling in enumerate(settings):
            groups[sampling].append(line)
    for sampling, lines in groups.items():
        nodes = [places[line] for line in lines]
        prefixes = [prefix_at(rows[row], trees[row], node) for row, node in nodes] if sampling.looks_back else None
        node_groups.append(NodeGroup(sampling, lines, nodes, prefixes))
    return node_groups


def prefix_at(row: RunningRow, tree: TokenTree, node: int) -> Int[Tensor, " length"]:
    """The whole sequence that ends at a node."""
    assert row.prefix is not None  # of rows whose processors look at it
    path = [tree.tokens[node] for node in tree.path(node)]
    return torch.cat([row.prefix, upload(path, row.prefix.device, row.prefix.dtype)])


def generators_for(generator: torch.Generator | list[torch.Generator] | None, rows: int) -> list[torch.Generator]:
    """A generator for each row: those of the list, or some that are seeded from the single one or PyTorch's own."""
    check_generators(generator, rows)
    if isinstance(generator, list):
        return generator
    device = generator.device if generator is not None else None
    seeds = torch.randint(2**62, (rows,), generator=generator, device=device).tolist()
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def check_generators(generator: Any, rows: int) -> None:
    """Raise unless there is none, one, or a list of one for each row."""
    generators = generator if isinstance(generator, list) else [generator] if generator is not None else []
    if wrong := [type(g).__name__ for g in generators if not isinstance(g, torch.Generator)]:
        raise AdviceError(f"generator is of type {wrong[0]}; pass a torch.Generator, or a list of one for each row")
    if isinstance(generator, list) and len(generator) != rows:
        raise AdviceError(f"there are {len(generator)} generators and {rows} rows; pass one for each, or a single one")
