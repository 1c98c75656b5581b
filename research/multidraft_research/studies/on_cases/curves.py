"""The Lorenz rule at one captured position as a table: the two curves and the schedule, token by token."""

from contextlib import suppress

from multidraft.errors import AdviceError
from multidraft.io.journal import Record
from multidraft_research.captures.folder import Capture
from multidraft_research.studies.curves import PositionCase, telling_case
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Panel, Study

SCHEDULE = "schedule"
DRAFTS, TOP_K = 4, 12  # those of `multidraft study curves`


def first_telling(capture: Capture) -> tuple[PositionCase, str] | None:
    """The telling position of the first prompt that has one, and that prompt; None where no prompt has."""
    for index, entry in enumerate(capture.entries):
        with suppress(AdviceError):
            return telling_case(capture.shard(index).recording, DRAFTS, min(TOP_K, capture.vocabulary)), entry.id
    return None


def record(case: PositionCase, names: list[str], prompt: str) -> Record:
    """A column for each token; equal names are told apart by their rank."""
    values = {"target p": case.target, "draft q": case.draft, "p/q": case.target / case.draft}
    values |= {"draft mass Q": case.plan.Q[: case.size], "phase ends at T": case.ends}
    cells = [
        Cell(SCHEDULE, row, f"{rank} {name}", value, 1.0)
        for row, line in values.items()
        for rank, (name, value) in enumerate(zip(names, line.tolist(), strict=True), 1)
    ]
    return {"id": prompt, "cells": cells}


STUDY = Study(
    paper="the rule lorenz, docs/theory.md",
    panels={SCHEDULE: Panel("the schedule at one captured position", "token", digits=4)},
    cases=None,
)
