"""What a plan is made of: a pair, prompts, a scheme and a walk, and how its steps are made."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from multidraft.autotune.identity import identity
from multidraft.decoding.metrics import Info
from multidraft.decoding.prefill import start
from multidraft.decoding.shapes import Shape
from multidraft.decoding.state import Plan, State
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import Walker
from multidraft.models.huggingface import Model, home
from multidraft.sampling.settings import Sampling
from multidraft.verification.scheme import Scheme

PROMPT, STEPS_LEAVE = 160, 160  # tokens of a prompt that are read at most, and what the steps after it need


@dataclass(frozen=True)
class Subject:
    """A pair with prompts, decoded with a scheme and a walk."""

    target: Model
    draft: Model
    prompts: list[list[int]]
    scheme: Scheme
    walk: str | Walker

    @property
    def identity(self) -> dict[str, Any]:
        """Which pair, on which machine."""
        return identity(self.target, self.draft, self.scheme, str(self.walk))

    @property
    def clock(self) -> Callable[[], float]:
        """What steps are timed with: where one thread does everything, other programs do not stretch its seconds."""
        models = self.target, self.draft
        alone = all(isinstance(model, PreTrainedModel) and home(model).type == "cpu" for model in models)
        return time.thread_time if alone and torch.get_num_threads() == 1 else time.perf_counter

    def texts(self, rows: int, turn: int) -> list[list[int]]:
        """So many prompts, which are others every turn."""
        return [self.prompts[(turn * rows + row) % len(self.prompts)][-PROMPT:] for row in range(rows)]

    def begin(self, plan: Plan, texts: list[list[int]], seed: int, info: Info | None = None) -> State:
        """The state after some texts, with room for the steps that follow."""
        longest, random = max(map(len, texts)) + STEPS_LEAVE, torch.Generator().manual_seed(seed)
        return start(texts, self.target, self.draft, plan, longest, random, info or Info())

    def plan(self, tree: Tree | Shape, temperature: float | int = 1.0) -> Plan:
        """How its steps are made."""
        return Plan(self.scheme, tree, self.walk, Sampling(temperature=temperature), measure=False)
