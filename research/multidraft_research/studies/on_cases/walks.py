"""Towards Optimal MDSD, Figure 3, on random tables: walks over tiny trees beside the best that is possible, exactly."""

from collections.abc import Iterator
from dataclasses import dataclass

from multidraft.decoding.tree import Tree
from multidraft.io.journal import Record
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Finding, Panel, Study
from multidraft_research.studies.walks import SCHEMES, TREES, jobs, one_case

ACCEPTED, BOUND = "accepted", "bound"


@dataclass(frozen=True)
class OverTables:
    """Every scheme, tree and walk over one random pair of models."""

    vocabulary: int
    seed: int

    def __call__(self, job: int) -> Record:
        return {"id": f"case {job}", "cells": list(self.cells(self.seed + job))}

    def cells(self, seed: int) -> Iterator[Cell]:
        """What each walk accepts, and the bound."""
        for scheme, tree in jobs(SCHEMES, TREES, self.vocabulary):
            walks, bound = one_case(scheme, Tree.parse(tree), self.vocabulary, seed)
            for walk, accepted in (walks | {BOUND: bound}).items():
                yield Cell(ACCEPTED, row(scheme.name, walk), tree, accepted, 1.0)


def row(scheme: str, walk: str) -> str:
    """What a line of the table is called."""
    return f"{scheme}, {walk}"


def finding(text: str, scheme: str, above: str, below: str, tree: str) -> Finding:
    """That one walk of a scheme accepts more than another."""
    return Finding(f"{text} ({tree})", (ACCEPTED, row(scheme, above), tree), (ACCEPTED, row(scheme, below), tree))


LORENZ = "iid:lorenz"
STUDY = Study(
    paper="Towards Optimal MDSD, Figure 3",
    panels={ACCEPTED: Panel("accepted tokens a target pass, random tables", "tree", digits=4)},
    findings=(
        finding("many steps together accept more", LORENZ, "deferred", "commit", "1x1x1"),
        finding("many drafts and steps together accept more", LORENZ, "deferred", "commit", "2x2"),
        finding("no walk of ours is the best possible", LORENZ, BOUND, "deferred, no coin for small claims", "2x2"),
    ),
    cases="random pairs of models",
)
