"""What stays the same over a generation, what the next step needs, and what a step emits."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.decoding.logprobs import Logprob
from multidraft.decoding.randomness import Randomness
from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.shapes import Shape, shape_of
from multidraft.decoding.tree import NO_DRAFTS, Tree
from multidraft.decoding.walks import Ending, Walker
from multidraft.errors import AdviceError
from multidraft.machine.device import placed
from multidraft.models import LanguageModel
from multidraft.sampling.prefixes import Prefixes
from multidraft.sampling.settings import Sampling
from multidraft.verification.scheme import Scheme


@runtime_checkable
class Tracer(Protocol):
    """Is told what happens and why; decodes as without it."""

    seconds: float  # of its own, which are not counted
    looks: bool  # whether it wants to see the trees of steps that draft nothing

    def begin(self, state: "State", plan: "Plan", prompts: list[list[int]]) -> "State":
        """The prompts have been read; decoding goes on from the state that it returns."""
        ...

    def decide(self, state: "State", plan: "Plan", tree: ScoredTree) -> "Decision":
        """Where the walk of every row ends, and its one more token."""
        ...

    def end(self, tokens: list[list[int]]) -> None:
        """These are the tokens that are returned."""
        ...


@dataclass(frozen=True)
class Plan:
    """What stays the same over a generation."""

    scheme: Scheme
    tree: Tree | Shape
    walk: str | Walker = "deferred"
    sampling: Sampling = field(default_factory=Sampling)  # of rows that start without settings of their own
    measure: bool = True  # report the optimal acceptance rate; its time is not counted
    compile: bool = False  # the steps of Hugging Face models
    trace: Tracer | None = None
    logprobs: int | None = None  # log-probabilities of what is emitted, and of so many of the most likely tokens

    @cached_property
    def shape(self) -> Shape:
        """The tree as a shape."""
        return shape_of(self.tree)


@dataclass
class State:
    """What the next step needs: the models with their caches, and for every running row its last token."""

    target: LanguageModel
    draft: LanguageModel | None
    random: list[Randomness]
    roots: list[int]  # by row its last token, which is in neither cache
    positions: list[int]  # of the roots in their sequences
    unread: list[list[int]]  # the tokens before it that the draft model has not read, if there are any
    sampling: list[Sampling]  # of every row, which it keeps from its start
    prefixes: Prefixes | None = None  # all tokens up to the root, if a processor looks at them
    said: Float[Tensor, "batch 1 vocabulary"] | None = None  # by the target at the root, where it has read it already
    used: bool = False  # the models have moved on from it

    @cached_property
    def root(self) -> Int[Tensor, " batch"]:
        """The roots where the target expects them."""
        return placed(self.roots, self.target.device)

    @cached_property
    def position(self) -> Int[Tensor, " batch"]:
        """Their positions, there as well."""
        return placed(self.positions, self.target.device)


@dataclass(frozen=True)
class Decision:
    """How a step ends in every row."""

    endings: list[Ending]
    last: list[int]  # the one more token
    acceptance: dict[int, float]  # what the rule accepts of the tuple at the root, by row; nothing where none was drawn
    numbers: Sequence[float] = ()  # what the one more token was drawn with, by row


@dataclass(frozen=True)
class Emitted:
    """One row's new tokens and how each came to be: "accepted", "corrected" or "bonus"."""

    tokens: list[int]
    kinds: list[str]
    logprobs: list[Logprob] = field(default_factory=list)  # if asked for

    def first(self, count: int) -> "Emitted":
        """The first tokens."""
        return Emitted(self.tokens[:count], self.kinds[:count], self.logprobs[:count])


def plan_at(state: State, plan: Plan) -> Plan:
    """The plan of a state's next step: what the target has said with the prompt needs no drafts, and no other pass."""
    return plan if state.said is None else replace(plan, tree=NO_DRAFTS)


def take_over(state: State) -> None:
    """Mark a state as used, because its models are about to move on; raise if they already have."""
    if state.used:
        raise AdviceError(
            "this state has been used, or was interrupted while its caches were written; go on from the newest one, "
            "or start again from the tokens so far"
        )
    state.used = True


def release(state: State) -> None:
    """Undo an interrupted step of which nothing has been kept: what is pending is dropped."""
    for model in (state.target, state.draft):
        if model is not None:
            model.keep(torch.full((len(state.roots), 0), -1))
    state.used = False


def padded(lists: list[list[int]], left: bool = False) -> Int[Tensor, "rows longest"]:
    """A tensor of rows, filled up with -1 at the end, or on the left."""
    longest = max(map(len, lists))
    fill = [[-1] * (longest - len(row)) for row in lists]
    pairs = zip(fill, lists, strict=True) if left else zip(lists, fill, strict=True)
    return torch.tensor([first + second for first, second in pairs], dtype=torch.int64)
