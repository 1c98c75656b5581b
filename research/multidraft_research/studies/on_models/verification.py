"""Multi-Candidate SD, Table 4: ways to verify several candidates, and tree attention beside a batch of paths."""

from collections.abc import Iterator

from multidraft.decoding.tree import Tree
from multidraft_research.studies.on_models.latency import seconds
from multidraft_research.studies.on_models.runs import EFFICIENCY, cells, decode_prompt, panels
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Decoding, Finding, Panel, Study

TREES, TEMPERATURE = ("4x2x2", "8x2x1x1", "16x1x1"), 1.0
SCHEMES = {
    "MCSS without replacement": "without_replacement:recursive_rejection",
    "MCSS with replacement": "iid:recursive_rejection",
    "MCNS": "without_replacement:naive",
    "ours": "anchored:lorenz",
}
ATTENTION = "attention"


def measure(decoding: Decoding) -> Iterator[Cell]:
    """Every rule over every tree, and a target pass over its nodes or over all its paths side by side."""
    plain = decode_prompt(decoding, TEMPERATURE, drafts=False)
    for tree in TREES:
        for name, scheme in (SCHEMES | {name: name for name in decoding.schemes}).items():
            info = decode_prompt(decoding, TEMPERATURE, scheme=scheme, tree=tree, walk="commit")
            yield from cells(name, tree, info, plain)
        nodes, paths, depth = size(tree)
        together = seconds(decoding.pair.target, decoding.passage.tokens, nodes, 1)
        yield Cell(
            ATTENTION,
            "a batch of paths",
            tree,
            seconds(decoding.pair.target, decoding.passage.tokens, depth, paths),
            together,
        )


def size(tree: str) -> tuple[int, int, int]:
    """Nodes below the root, paths and depth of a k-configuration.

    >>> size("4x2x2")
    (28, 16, 3)
    """
    parsed = Tree.parse(tree)
    paths = sum(depth == max(parsed.depths) for depth in parsed.depths)
    return len(parsed) - 1, paths, max(parsed.depths)


def finding(text: str, above: str, below: str) -> Finding:
    """That one rule emits more tokens a pass than another."""
    return Finding(f"{text} ({TREES[0]})", (EFFICIENCY, above, TREES[0]), (EFFICIENCY, below, TREES[0]))


WITHOUT, WITH, NAIVE, _ = SCHEMES
STUDY = Study(
    paper="Multi-Candidate SD, Table 4",
    panels=panels("tree (T = 1)")
    | {ATTENTION: Panel("seconds of a target pass over those with tree attention", "tree")},
    on_models=measure,
    compares=True,
    printed=("multi_candidate_table_4",),
    findings=(
        finding("sampling without replacement emits more than naive verification", WITHOUT, NAIVE),
        finding("without replacement emits more than with", WITHOUT, WITH),
    ),
)
