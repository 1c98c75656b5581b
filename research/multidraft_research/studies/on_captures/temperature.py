"""Towards Optimal MDSD, Figure 1: acceptance against the temperature of both models."""

from collections.abc import Iterator

from multidraft_research.studies.on_captures.rates import RATE, compare_schemes, panels
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Captured, Finding, Study

TEMPERATURES, DRAFTS = (0.0, 0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0), 3


def measure(part: Captured) -> Iterator[Cell]:
    """The text is the one that was captured, whatever the temperature; the paper draws it anew."""
    for temperature in TEMPERATURES:
        yield from compare_schemes(part, temperature, DRAFTS, temperature)


STUDY = Study(
    paper="Towards Optimal MDSD, Figure 1",
    panels=panels(f"temperature ({DRAFTS} drafts)"),
    on_capture=measure,
    compares=True,
    drafts=DRAFTS,
    findings=tuple(
        Finding(text, (RATE, above, temperature), (RATE, below, temperature))
        for text, temperature, above, below in (
            ("at T = 0 drafts without duplicates accept more", 0.0, "greedy optimum", "iid optimum"),
            ("at T = 1 greedy drafts are no longer best", 1.0, "without_replacement optimum", "greedy optimum"),
            ("at T = 1 K-SEQ is short of the optimum", 1.0, "iid optimum", "iid:k_sequential"),
            ("at T = 1 RRS is short of the optimum", 1.0, "iid optimum", "iid:recursive_rejection"),
        )
    ),
)
