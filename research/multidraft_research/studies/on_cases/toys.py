"""SpecTr's Figures 4 to 6 as tables: exact numbers of toy pairs, without an error."""

from multidraft.io.journal import Record
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Panel, Study
from multidraft_research.studies.toys import FIGURES, figures


def record() -> Record:
    """All curves."""
    cells = [
        Cell(title, name, float(drafts), value, 1.0)
        for title, curves in figures().items()
        for name, values in curves.items()
        for drafts, value in enumerate(values, 1)
    ]
    return {"id": "exact", "cells": cells}


STUDY = Study(
    paper="SpecTr, Figures 4 to 6",
    panels={title: Panel(f"{title}, acceptance rate", "drafts", digits=4) for title in FIGURES},
    cases=None,
)
