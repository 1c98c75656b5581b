"""Randomised Drafting, Figures 3 and 4: what a draft made with probability a is worth, for some ratios of costs."""

from collections.abc import Iterator

import torch

from multidraft_research.studies.on_captures.rates import PERCENT, pair_at
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Captured, Finding, Panel, Study

PROBABILITIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
RATIOS = (0.6, 0.3, 0.1)  # a draft pass over a target pass; the first is the paper's
RATE, PER_STEP, RENEWAL = "acceptance", "mean of rates", "long run"
DRAFTED, STEP = "per drafted token", "per step"


def measure(part: Captured) -> Iterator[Cell]:
    """With A(a) = sum of min(p, a q): rates of one draft, and tokens per time of a target pass."""
    target, draft = pair_at(part.recording, 1.0)
    count = float(len(target))
    for a in PROBABILITIES:
        accepted = float(torch.minimum(target, a * draft).sum())
        yield Cell(RATE, DRAFTED, a, accepted, a * count)
        yield Cell(RATE, STEP, a, accepted, count)
        for ratio in RATIOS:
            yield Cell(PER_STEP, row(ratio), a, (accepted + a * count) / (1 + ratio) + (1 - a) * count, count)
            yield Cell(RENEWAL, row(ratio), a, count + accepted, count * (1 + a * ratio))


def row(ratio: float) -> str:
    """What a line of the table is called."""
    return f"draft pass / target pass = {ratio:g}"


TIME = "tokens per target pass's time"
STUDY = Study(
    paper="Randomised Drafting, Figures 3 and 4",
    panels={
        RATE: Panel("acceptance rate, %", "draft probability", PERCENT),
        PER_STEP: Panel(f"{TIME}, mean of rates (the paper's A.1)", "draft probability", digits=3),
        RENEWAL: Panel(f"{TIME}, long run (renewal-reward)", "draft probability", digits=3),
    },
    on_capture=measure,
    findings=(
        Finding("a draft made half as often is accepted more often", (RATE, DRAFTED, 0.5), (RATE, DRAFTED, 1.0)),
        Finding("a = 0.8 is faster than 1 (the paper's formula)", (PER_STEP, row(0.6), 0.8), (PER_STEP, row(0.6), 1.0)),
        Finding("a = 0.8 is faster than 1 (long run)", (RENEWAL, row(0.6), 0.8), (RENEWAL, row(0.6), 1.0)),
    ),
)
