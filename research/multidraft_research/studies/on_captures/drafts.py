"""Towards Optimal MDSD, Figure 2: acceptance against the number of drafts."""

from collections.abc import Iterator

from multidraft_research.studies.on_captures.rates import GAP, RATE, compare_schemes, panels
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Captured, Finding, Study

TEMPERATURE, COUNTS = 0.7, (1, 2, 3, 4, 6, 8)


def measure(part: Captured) -> Iterator[Cell]:
    """A column for each number of drafts."""
    for drafts in COUNTS:
        yield from compare_schemes(part, TEMPERATURE, drafts, float(drafts))


STUDY = Study(
    paper="Towards Optimal MDSD, Figure 2",
    panels=panels(f"drafts (T = {TEMPERATURE})"),
    on_capture=measure,
    compares=True,
    drafts=max(COUNTS),
    findings=(
        Finding("more drafts accept more", (RATE, "iid optimum", 8.0), (RATE, "iid optimum", 3.0)),
        Finding(
            "without replacement 8 drafts accept more",
            (RATE, "without_replacement optimum", 8.0),
            (RATE, "iid optimum", 8.0),
        ),
        Finding(
            "RRS falls further behind", (GAP, "iid:recursive_rejection", 2.0), (GAP, "iid:recursive_rejection", 8.0)
        ),
        Finding("K-SEQ falls further behind", (GAP, "iid:k_sequential", 2.0), (GAP, "iid:k_sequential", 8.0)),
    ),
)
