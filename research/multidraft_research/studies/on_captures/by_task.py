"""Towards Optimal MDSD, Table 1: acceptance of every scheme beside its optimum, task by task."""

from collections.abc import Iterator

from multidraft_research.studies.on_captures.rates import RATE, compare_schemes, panels
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Captured, Finding, Study

TEMPERATURE, DRAFTS = 0.7, 3  # the paper's
ALL = "all"


def measure(part: Captured) -> Iterator[Cell]:
    """Every prompt counts for its task, and for all of them."""
    for cell in compare_schemes(part, TEMPERATURE, DRAFTS, ALL):
        yield cell
        yield cell._replace(column=part.task.split("/")[0] or "no task")


STUDY = Study(
    paper="Towards Optimal MDSD, Table 1",
    panels=panels(f"task (T = {TEMPERATURE}, {DRAFTS} drafts)"),
    on_capture=measure,
    compares=True,
    drafts=DRAFTS,
    printed=("towards_optimal_table_1",),
    findings=tuple(
        Finding(text, (RATE, above, ALL), (RATE, below, ALL))
        for text, above, below in (
            ("K-SEQ accepts more than RRS", "iid:k_sequential", "iid:recursive_rejection"),
            ("K-SEQ is below the optimum", "iid optimum", "iid:k_sequential"),
            ("RRS is below the optimum", "iid optimum", "iid:recursive_rejection"),
            (
                "RRS without replacement is below its optimum",
                "without_replacement optimum",
                "without_replacement:recursive_rejection",
            ),
            ("without replacement the optimum is higher", "without_replacement optimum", "iid optimum"),
            ("greedy drafts have the highest optimum", "greedy optimum", "without_replacement optimum"),
        )
    ),
)
