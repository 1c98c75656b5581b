"""Multi-Candidate SD, Tables 2, 3, 5 and 6 and Figure 4: k-configurations of up to 32 candidates."""

from collections.abc import Iterator

from multidraft_research.studies.on_models.runs import EFFICIENCY, SPEED, cells, decode_prompt, panels
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Decoding, Finding, Study

CHAINS = ("1", "1x1", "1x1x1", "1x1x1x1", "1x1x1x1x1", "1x1x1x1x1x1x1")
PAIRS = ("2x1", "1x2", "2x2", "4x1", "4x2", "2x4", "8x1", "4x4", "8x2", "2x8", "16x1", "8x4", "4x8", "16x2", "2x16")
LONGER = ("32", "8x2x1", "4x2x2", "8x2x2", "4x2x2x1", "8x2x1x1", "4x2x2x1x1")
MONOTONE = (("4x2", "2x4"), ("8x2", "2x8"), ("8x4", "4x8"), ("16x2", "2x16"))
SCHEME, TEMPERATURES = "without_replacement:recursive_rejection", (0.0, 1.0)


def measure(decoding: Decoding) -> Iterator[Cell]:
    """The paper's algorithm over every configuration, its chains being ordinary speculative decoding."""
    for temperature in TEMPERATURES:
        plain = decode_prompt(decoding, temperature, drafts=False)
        for tree in (*CHAINS, *PAIRS, *LONGER):
            info = decode_prompt(decoding, temperature, scheme=SCHEME, tree=tree, walk="commit")
            yield from cells(row(temperature), tree, info, plain)


def row(temperature: float) -> str:
    """What a line of the tables is called."""
    return f"T = {temperature:g}"


def finding(text: str, panel: str, above: str, below: str) -> Finding:
    """That one configuration does better than another at T = 1."""
    return Finding(f"{text} (T = 1)", (panel, row(1.0), above), (panel, row(1.0), below))


STUDY = Study(
    paper="Multi-Candidate SD, Tables 2, 3, 5 and 6, Figure 4",
    panels=panels("k-configuration"),
    on_models=measure,
    printed=tuple(f"multi_candidate_table_{number}" for number in (2, 3, 5, 6)),
    findings=(
        *(
            finding(f"{first} emits more than {second}: the monotone rule", EFFICIENCY, first, second)
            for first, second in MONOTONE
        ),
        finding("16 candidates are faster than 32", SPEED, "8x2", "16x2"),
    ),
)
