"""Towards Optimal MDSD, Tables 2 and 3, and the question of its Figure 3: many drafts and many steps, both walks."""

import json
from collections.abc import Iterator

from multidraft.verification.registry import scheme
from multidraft_research.studies.on_models.runs import EFFICIENCY, cells, decode_prompt, panels
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Decoding, Finding, Study

EAGLE = "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"  # a path a word
TREES = {"2x2x2x2": "2x2x2x2", "4x4x4": "4x4x4"}
TREES |= {"EAGLE's": json.dumps([[int(rank) for rank in path] for path in EAGLE.split()])}
TEMPERATURES = (0.1, 0.6, 1.0)
BASE = "iid:recursive_rejection"
SCHEMES = (
    BASE,
    "without_replacement:recursive_rejection",
    "spechub:spechub",
    "greedy:maximal_coupling",
    "iid:lorenz",
    "anchored:lorenz",
)
WALKS = ("commit", "deferred")


def measure(decoding: Decoding) -> Iterator[Cell]:
    """Every scheme and walk over every tree; SpecHub takes two drafts at every node."""
    for temperature in TEMPERATURES:
        plain = decode_prompt(decoding, temperature, drafts=False)
        for name, tree in TREES.items():
            base = decode_prompt(decoding, temperature, scheme=BASE, tree=tree, walk=WALKS[0])
            schemes = [s for s in SCHEMES if name == "2x2x2x2" or not s.startswith("spechub")]
            for rule in (*schemes, *decoding.schemes):
                for walk in walks_of(rule):
                    again = (rule, walk) == (BASE, WALKS[0])
                    info = base if again else decode_prompt(decoding, temperature, scheme=rule, tree=tree, walk=walk)
                    yield from cells(f"{rule}, {walk}", column(name, temperature), info, plain, base)


def walks_of(name: str) -> tuple[str, ...]:
    """The walks that a scheme's rule is right for."""
    return WALKS if scheme(name).entry.sub_probability else WALKS[:1]


def column(tree: str, temperature: float) -> str:
    """What a column of the tables is called."""
    return f"{tree}, T = {temperature:g}"


def finding(text: str, above: str, below: str, tree: str, temperature: float) -> Finding:
    """That one way of decoding emits more tokens a pass than another."""
    place = column(tree, temperature)
    return Finding(f"{text} ({place})", (EFFICIENCY, above, place), (EFFICIENCY, below, place))


RRS, GREEDY = "without_replacement:recursive_rejection, commit", "greedy:maximal_coupling, commit"
STUDY = Study(
    paper="Towards Optimal MDSD, Tables 2 and 3",
    panels=panels("tree and temperature", f"{BASE}, commit"),
    on_models=measure,
    compares=True,
    printed=("towards_optimal_table_2", "towards_optimal_table_3"),
    findings=(
        finding("greedy drafts emit more than without replacement", GREEDY, RRS, "4x4x4", 0.1),
        finding("without replacement emits more than with", RRS, f"{BASE}, commit", "4x4x4", 0.6),
        finding("greedy drafts emit less than without replacement", RRS, GREEDY, "EAGLE's", 1.0),
        finding("both directions together emit more", "iid:lorenz, deferred", "iid:lorenz, commit", "4x4x4", 1.0),
    ),
)
