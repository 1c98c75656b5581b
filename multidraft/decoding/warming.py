"""What is compiled when it is first used is used once before any clock runs."""

from collections.abc import Sequence
from functools import cache, partial
from operator import add

import torch
from transformers import PreTrainedModel

from multidraft.decoding.prefill import capacity_of
from multidraft.decoding.shapes import Fixed, Shape
from multidraft.decoding.state import Plan
from multidraft.models.compiled import prepare
from multidraft.models.huggingface import Model
from multidraft.verification import loops
from multidraft.verification.distributions import pick
from multidraft.verification.levels import draw_level
from multidraft.verification.places import Drawing
from multidraft.verification.rules.coupling import residual
from multidraft.verification.scheme import Scheme


def warm_up(scheme: Scheme, shape: Shape, device: torch.device) -> None:
    """Draw and verify once with every number of drafts that a node may have, where that runs as loops."""
    if loops.HAS_NUMBA and device.type == "cpu" and not scheme.entry.small:  # solvers have no loops
        for count in shape.counts_drawn:
            use_once(scheme.with_drafts(count))


def compile_steps(plan: Plan, models: Sequence[Model | None], prompts: list[list[int]], budgets: list[int]) -> None:
    """Compile the steps of such a run, where models can be compiled; what is there already is not compiled again."""
    lengths = [len(prompt) for prompt in prompts]
    longest = capacity_of(plan, max(map(add, lengths, budgets)))
    for number, model in enumerate(models):
        branches = number == 0 and isinstance(plan.shape, Fixed) and plan.shape.most_slots > 1
        if isinstance(model, PreTrainedModel):
            prepare(model, len(prompts), (1 + branches, plan.shape.most_slots), (min(lengths), longest))


@cache
def use_once(scheme: Scheme) -> None:
    """All loops that a step may call, on a few tokens: with duplicates and without, with an anchor and without."""
    numbers = partial(torch.zeros, dtype=torch.float64)
    for first in (0.0, 2.0):
        target = torch.tensor([first] + [0.0] * (2 * scheme.drafts)).softmax(-1)
        pick(residual(target, target, 1.0, 0.5), numbers(1))
        draft = target.expand(scheme.drafts, -1) if scheme.law.several else target
        tokens = torch.full((1, 1 + scheme.drafts), -1)
        drafted = torch.full((1, 1 + scheme.drafts, scheme.law.width), -1)
        uniform = numbers(1, scheme.law.numbers)
        draw_level(Drawing([0], (scheme.drafts,), [1]), scheme.law, draft[None, None], uniform, tokens, drafted)
        _ = scheme.verify(target, draft, drafted[0, 0]).residual
