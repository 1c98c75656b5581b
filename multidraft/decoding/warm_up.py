"""Before the first step: loops and steps that are compiled run once, before any clock does."""

from collections.abc import Sequence
from functools import cache
from operator import add
from threading import Timer

import torch

from multidraft.decoding.policy import PolicyLimits
from multidraft.decoding.state import DecodeConfig
from multidraft.errors import say_once
from multidraft.models.reader import Reader
from multidraft.sampling.drafting import draft_distributions
from multidraft.sampling.settings import Sampling
from multidraft.verification.distributions import pick_each
from multidraft.verification.scheme import Scheme

SILENT_SECONDS = 2.0
COMPILING_NOTE = "compiling loops for this processor, once for each version: some ten seconds"


def warm_up(config: DecodeConfig, limits: PolicyLimits, device: torch.device) -> None:
    """Draw and verify once with every number of drafts that a node may have, where that runs as loops."""
    if device.type == "cpu" and not config.scheme.entry.small:  # solvers have no loops
        use_all_once(tuple(map(config.scheme.with_drafts, limits.draft_counts)))


def compile_steps(
    limits: PolicyLimits, models: Sequence[Reader | None], prompts: list[list[int]], budgets: list[int], rows: int
) -> None:
    """Compile the steps of a run of so many rows at a time, where models can be compiled and have not been."""
    lengths = [len(prompt) for prompt in prompts]
    longest = max(map(add, lengths, budgets)) + limits.slack
    for number, model in enumerate(models):
        branches = number == 0 and limits.shape is not None and limits.max_nodes > 1
        if model is not None:
            model.prepare(rows, (1 + branches, limits.max_nodes), (min(lengths), longest))


@cache
def use_all_once(schemes: tuple[Scheme, ...]) -> None:
    """The loops of these, and those of drafts; says so where compiling them takes a while."""
    note = Timer(SILENT_SECONDS, say_once, [COMPILING_NOTE])
    note.start()
    try:
        for scheme in schemes:
            use_once(scheme)
        for dtype in (torch.float32, torch.float64):
            draft_distributions(torch.zeros(1, 2, dtype=dtype), Sampling(), drafts=1, vocabulary=2)
    finally:
        note.cancel()


@cache
def use_once(scheme: Scheme) -> None:
    """All loops that a step may call, on a few tokens: with duplicates and without, with an anchor and without."""
    numbers = torch.zeros(1, scheme.law.num_uniforms, dtype=torch.float64)
    for first in (0.0, 2.0):
        target = torch.tensor([[first] + [0.0] * (2 * scheme.drafts)], dtype=torch.float64).softmax(-1)
        for weights in (target, target.float()):
            pick_each(weights, [0.5])
        draft = target[:, None].expand(-1, scheme.drafts, -1) if scheme.law.per_draft_distributions else target
        _ = scheme.verify(target, draft, scheme.law.draw(draft, numbers)).residual
