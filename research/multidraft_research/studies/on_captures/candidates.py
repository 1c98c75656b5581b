"""Multi-Candidate SD, Figures 3 and 5, Tables 1 and 7: acceptance against the number of candidates."""

from collections.abc import Iterator

from multidraft.verification.registry import scheme
from multidraft_research.studies.on_captures.rates import PERCENT, RATE, TUPLES, entry, pair_at, ranks
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Captured, Finding, Panel, Study

COUNTS, TEMPERATURES = (1, 2, 3, 4, 8, 16, 32), (0.0, 1.0)
RULES = (
    "without_replacement:recursive_rejection",
    "iid:recursive_rejection",
    "without_replacement:naive",
    "anchored:lorenz",
)


def measure(part: Captured) -> Iterator[Cell]:
    """Every rule at both temperatures; at T = 0 drafts with duplicates are all the same token."""
    for temperature in TEMPERATURES:
        for drafts in COUNTS:
            for name in (*RULES, *part.schemes):
                s = scheme(name, drafts=drafts)
                target, draft = pair_at(part.recording, temperature, ranks(s))
                rate = s.acceptance_rate(target, draft, TUPLES, part.generator)
                yield entry(RATE, row(name, temperature), float(drafts), rate)


def row(name: str, temperature: float) -> str:
    """What a line of the table is called."""
    return f"{name}, T = {temperature:g}"


STUDY = Study(
    paper="Multi-Candidate SD, Figures 3 and 5, Tables 1 and 7",
    panels={RATE: Panel("acceptance rate, %", "candidates", PERCENT)},
    on_capture=measure,
    compares=True,
    drafts=max(COUNTS),
    printed=("multi_candidate_table_1", "multi_candidate_table_7"),
    findings=tuple(
        Finding(f"{text} (T = 1, 4 candidates)", (RATE, row(above, 1.0), 4.0), (RATE, row(below, 1.0), 4.0))
        for text, above, below in (
            ("without replacement accepts more than with", RULES[0], RULES[1]),
            ("sampling accepts more than naive verification", RULES[0], RULES[2]),
        )
    ),
)
