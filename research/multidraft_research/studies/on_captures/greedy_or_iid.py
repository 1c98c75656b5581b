"""Global Resolution, Figures 2 and 3: i.i.d. drafts beside greedy ones, with the draft cut to its top k."""

from collections.abc import Iterator

from multidraft.verification.registry import scheme
from multidraft_research.studies.on_captures.rates import GAP, PERCENT, RATE, entry, pair_at
from multidraft_research.studies.on_captures.top_k import row
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Captured, Finding, Panel, Study

CUTS, COUNTS = (10, 100, 1000, None), (2, 3, 4, 5, 6, 8)
LAWS = {"i.i.d.": "iid:lorenz", "greedy": "greedy:maximal_coupling"}


def measure(part: Captured) -> Iterator[Cell]:
    """The optimum of both laws, and their difference position by position."""
    for top_k in CUTS:
        for drafts in COUNTS:
            target, draft = pair_at(part.recording, 1.0, top_k=top_k)
            iid, greedy = (scheme(s, drafts=drafts).optimal_acceptance_rate(target, draft) for s in LAWS.values())
            yield entry(RATE, f"i.i.d., {row(top_k)}", float(drafts), iid)
            yield entry(RATE, f"greedy, {row(top_k)}", float(drafts), greedy)
            yield entry(GAP, row(top_k), float(drafts), iid - greedy)


STUDY = Study(
    paper="Global Resolution, Figures 2 and 3",
    panels={
        RATE: Panel("optimal acceptance rate, %", "drafts (T = 1)", PERCENT),
        GAP: Panel("i.i.d. less greedy, points", "drafts (T = 1)", PERCENT),
    },
    on_capture=measure,
    drafts=max(COUNTS),
    findings=(
        Finding(
            "greedy drafts accept more with 2", (RATE, f"greedy, {row(100)}", 2.0), (RATE, f"i.i.d., {row(100)}", 2.0)
        ),
        Finding(
            "i.i.d. drafts accept more with 8", (RATE, f"i.i.d., {row(100)}", 8.0), (RATE, f"greedy, {row(100)}", 8.0)
        ),
    ),
)
