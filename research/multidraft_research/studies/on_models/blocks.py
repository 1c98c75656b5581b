"""SpecTr, Tables 1 and 4: K i.i.d. paths of L tokens."""

from collections.abc import Iterator

from multidraft_research.studies.on_models.runs import EFFICIENCY, cells, decode_prompt, panels
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Decoding, Finding, Study

PATHS, LENGTHS, TEMPERATURE = (1, 2, 4, 8), (4, 8), 1.0
WAYS = {"SpecTr": ("iid:k_sequential", "commit"), "ours": ("iid:lorenz", "deferred")}


def measure(decoding: Decoding) -> Iterator[Cell]:
    """The paper's algorithm, which is speculative decoding with one path, and ours over the same drafts."""
    plain = decode_prompt(decoding, TEMPERATURE, drafts=False)
    for length in LENGTHS:
        for paths in PATHS:
            for name, (scheme, walk) in (WAYS | {name: (name, "commit") for name in decoding.schemes}).items():
                info = decode_prompt(decoding, TEMPERATURE, scheme=scheme, tree=f"{paths} paths of {length}", walk=walk)
                yield from cells(row(name, length), float(paths), info, plain)


def row(name: str, length: int) -> str:
    """What a line of the tables is called."""
    return f"{name}, L = {length}"


STUDY = Study(
    paper="SpecTr, Tables 1 and 4",
    panels=panels("paths K (T = 1)"),
    on_models=measure,
    compares=True,
    printed=("spectr_table_1", "spectr_table_4"),
    findings=(
        Finding("8 paths emit more than one", (EFFICIENCY, row("SpecTr", 4), 8.0), (EFFICIENCY, row("SpecTr", 4), 1.0)),
        Finding("8 tokens emit more than 4", (EFFICIENCY, row("SpecTr", 8), 8.0), (EFFICIENCY, row("SpecTr", 4), 8.0)),
    ),
)
