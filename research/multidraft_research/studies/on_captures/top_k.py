"""Global Resolution, Figure 1: the optimum of i.i.d. drafts against their number, with the draft cut to its top k."""

from collections.abc import Iterator

from multidraft.verification.laws.iid import optimal_iid
from multidraft_research.studies.on_captures.rates import PERCENT, RATE, entry, pair_at
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Captured, Finding, Panel, Study

CUTS, COUNTS = (10, 100, 1000), (1, 2, 3, 4, 5, 6, 8, 10)
ALL = "all tokens"


def measure(part: Captured) -> Iterator[Cell]:
    """At temperature 1, as in the paper; its numbers of drafts are lost in our copy."""
    for top_k in (*CUTS, None):
        for drafts in COUNTS:
            target, draft = pair_at(part.recording, 1.0, top_k=top_k)
            yield entry(RATE, row(top_k), float(drafts), optimal_iid(target, draft, drafts))


def row(top_k: int | None) -> str:
    """What a line of the table is called."""
    return ALL if top_k is None else f"k = {top_k}"


STUDY = Study(
    paper="Global Resolution, Figure 1",
    panels={RATE: Panel("optimal acceptance rate, %", "drafts (T = 1)", PERCENT)},
    on_capture=measure,
    drafts=max(COUNTS),
    findings=(
        Finding("10 drafts accept more than 2", (RATE, ALL, 10.0), (RATE, ALL, 2.0)),
        Finding("k = 100 accepts more than k = 10 (10 drafts)", (RATE, row(100), 10.0), (RATE, row(10), 10.0)),
        Finding("k = 1000 accepts more than k = 100 (10 drafts)", (RATE, row(1000), 10.0), (RATE, row(100), 10.0)),
    ),
)
