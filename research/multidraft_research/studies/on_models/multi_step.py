"""Global Resolution, Table 4: i.i.d. paths of drafts from the ten likeliest tokens, several steps long."""

from collections.abc import Iterator

from multidraft_research.studies.on_models.runs import EFFICIENCY, cells, decode_prompt, panels
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Decoding, Finding, Study

PATHS, LENGTH, TOP_K, TEMPERATURE = (2, 3, 4), 4, 10, 1.0  # the length of the paths is lost in our copy
WAYS = {
    "Global Resolution": ("iid:global_resolution,tolerance=0.001,fallback=naive", "commit"),
    "ours": ("iid:lorenz", "commit"),
    "ours, deferred": ("iid:lorenz", "deferred"),
}


def measure(decoding: Decoding) -> Iterator[Cell]:
    """Where Global Resolution fails, its rule emits what the target draws, as in the paper."""
    plain = decode_prompt(decoding, TEMPERATURE, drafts=False)
    for paths in PATHS:
        tree = f"{paths} paths of {LENGTH}"
        for name, (scheme, walk) in WAYS.items():
            info = decode_prompt(decoding, TEMPERATURE, scheme=scheme, tree=tree, walk=walk, draft_top_k=TOP_K)
            yield from cells(name, float(paths), info, plain)


STUDY = Study(
    paper="Global Resolution, Table 4",
    panels=panels(f"paths of {LENGTH} (T = {TEMPERATURE:g}, top {TOP_K} of the draft)"),
    on_models=measure,
    printed=("global_resolution_table_4",),
    findings=(
        Finding(
            "4 paths emit more than 2", (EFFICIENCY, "Global Resolution", 4.0), (EFFICIENCY, "Global Resolution", 2.0)
        ),
    ),
)
