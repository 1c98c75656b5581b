"""Global Resolution, Figures 4 and 5: the target's temperature alone is changed, the draft's stays 1."""

from collections.abc import Iterator
from time import perf_counter

import torch
from torch import Tensor

from multidraft.sampling.from_logits import distribution
from multidraft.verification.distributions import uniform
from multidraft.verification.laws import Iid
from multidraft.verification.laws.iid import optimal_iid
from multidraft_research.solvers.global_resolution_rule import ResolutionFailure
from multidraft_research.studies.on_captures.rates import PERCENT, RATE, entry
from multidraft_research.studies.on_captures.top_k import row
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Captured, Finding, Panel, Study
from multidraft_research.studies.solve_time import top_k
from multidraft_research.studies.solvers import resolution

TEMPERATURES, CUTS, COUNTS = (0.2, 0.4, 0.6, 0.8, 1.0), (10, 100, 1000), (2, 4, 8)
SOLVED, TOLERANCE, POSITIONS = ((10, 2), (10, 3), (100, 2)), 1e-3, 4
FAILURES, SECONDS = "failures", "seconds"


def measure(part: Captured) -> Iterator[Cell]:
    """The optimum at every position, and Global Resolution's failures and time at a few."""
    draft = part.recording.draft.double()
    for temperature in TEMPERATURES:
        target = distribution(part.recording.target.double(), temperature)
        for k in CUTS:
            cut = distribution(draft, top_k=k)
            for n in COUNTS:
                yield entry(RATE, f"{row(k)}, {n} drafts", temperature, optimal_iid(target, cut, n))
        for k, n in SOLVED:
            if k <= target.shape[-1]:
                yield from measure_solver(
                    target[:POSITIONS], distribution(draft[:POSITIONS]), k, n, temperature, part.generator
                )


def measure_solver(
    target: Tensor, draft: Tensor, k: int, n: int, temperature: float, generator: torch.Generator
) -> Iterator[Cell]:
    """How often it fails, and how long a token takes whether it does or not."""
    failures, start = 0, perf_counter()
    for p, q in zip(target, draft, strict=True):
        ours, theirs = top_k(p, q, k)
        drafted = Iid(n).draw(theirs, uniform((n,), generator, theirs.device))
        try:
            resolution(TOLERANCE)(ours, theirs, drafted, Iid(n))
        except ResolutionFailure:
            failures += 1
    yield Cell(FAILURES, f"({k}, {n})", temperature, float(failures), float(len(target)))
    yield Cell(SECONDS, f"({k}, {n})", temperature, perf_counter() - start, float(len(target)))


STUDY = Study(
    paper="Global Resolution, Figures 4 and 5",
    panels={
        RATE: Panel("optimal acceptance rate, %", "temperature of the target", PERCENT),
        FAILURES: Panel(f"failures of Global Resolution ({TOLERANCE:g}), %", "temperature of the target", PERCENT, 0),
        SECONDS: Panel("milliseconds for a token", "temperature of the target", 1000.0, 1),
    },
    on_capture=measure,
    drafts=max(COUNTS),
    findings=(
        Finding(
            "at T = 1 a larger k accepts more",
            (RATE, f"{row(1000)}, 4 drafts", 1.0),
            (RATE, f"{row(10)}, 4 drafts", 1.0),
        ),
        Finding("failures rise with the temperature", (FAILURES, "(100, 2)", 1.0), (FAILURES, "(100, 2)", 0.2)),
    ),
)
