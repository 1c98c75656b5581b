"""Randomised Drafting, Figure 4 as it is measured: one draft that is made with probability a."""

from collections.abc import Iterator

from multidraft_research.studies.on_captures.randomised import PROBABILITIES
from multidraft_research.studies.on_models.runs import SPEED, cells, decode_prompt, panels
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Decoding, Finding, Study

SCHEME, ROW = "iid:lorenz", "one draft"


def measure(decoding: Decoding) -> Iterator[Cell]:
    """The draft model is not run where nothing is drafted."""
    plain = decode_prompt(decoding, 1.0, drafts=False)
    for a in PROBABILITIES:
        info = decode_prompt(decoding, 1.0, scheme=f"{SCHEME},draft_probability={a:g}", tree="1", walk="commit")
        yield from cells(ROW, a, info, plain)


STUDY = Study(
    paper="Randomised Drafting, Figure 4",
    panels=panels("draft probability (T = 1)"),
    on_models=measure,
    findings=(Finding("a = 0.8 is faster than a = 1", (SPEED, ROW, 0.8), (SPEED, ROW, 1.0)),),
)
