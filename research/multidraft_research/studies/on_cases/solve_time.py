"""Global Resolution, Tables 1 and 3: solve times, success, acceptance and exactness, with errors over tokens."""

from collections.abc import Iterable, Iterator

from multidraft.io.journal import Record
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Finding, Panel, Study
from multidraft_research.studies.solve_time import Result
from multidraft_research.studies.solve_time_table import by_case

SOURCES = ("recorded", "synthetic")
TIME, SUCCESS, SHARE, VARIATION = "milliseconds", "solved", "acceptance over the optimum", "total variation"


def records(results: Iterable[Result]) -> Iterator[Record]:
    """A record for each result; of what a method never solved in a problem, only that."""
    for group in by_case(results).values():
        ever = any(result.status == "solved" for result in group)
        for result in group:
            yield {"id": str(result.token), "cells": list(cells(result, ever))}


def cells(result: Result, ever: bool) -> Iterator[Cell]:
    """What a result adds: a token that was not solved has no weight but in the share of those that were."""
    solved, column = result.status == "solved", size(result.k, result.n)
    yield Cell(panel(SUCCESS, result.source), result.method, column, float(solved), 1.0)
    if ever:
        weight, accepted = float(solved), result.acceptance_rate or 0.0
        milliseconds, variation = 1000 * result.seconds * weight, result.total_variation or 0.0
        yield Cell(panel(TIME, result.source), result.method, column, milliseconds, weight)
        yield Cell(panel(SHARE, result.source), result.method, column, accepted, weight * result.optimum)
        yield Cell(panel(VARIATION, result.source), result.method, column, variation, weight)


def panel(what: str, source: str) -> str:
    """The name of a table."""
    return f"{source}: {what}"


def size(k: int, n: int) -> str:
    """What a column is called.

    >>> size(1000, 2)
    '1,000, 2'
    """
    return f"{k:,}, {n}"


def finding(text: str, what: str, above: tuple[str, int, int], below: tuple[str, int, int]) -> Finding:
    """That one method in one problem is above another, on captured tokens."""
    places = ((panel(what, SOURCES[0]), method, size(k, n)) for method, k, n in (above, below))
    return Finding(text, *places)


RESOLUTION = "global_resolution 1e-3"
TITLES = {
    TIME: ("milliseconds for a token that was solved", 1.0, 2, True),
    SUCCESS: ("tokens that were solved, %", 100.0, 0, False),
    SHARE: ("acceptance over the optimum, %", 100.0, 2, False),
    VARIATION: ("total variation from the target", 1.0, 6, False),
}
STUDY = Study(
    paper="Global Resolution, Tables 1 and 3",
    panels={
        panel(what, source): Panel(f"{source} tokens: {title}", "top k, n drafts", scale, digits, log)
        for source in SOURCES
        for what, (title, scale, digits, log) in TITLES.items()
    },
    printed=("global_resolution_table_1", "global_resolution_table_2", "global_resolution_table_3"),
    findings=(
        finding(
            "Global Resolution is faster than a linear program (10, 4)",
            TIME,
            ("linear_program", 10, 4),
            (RESOLUTION, 10, 4),
        ),
        finding(
            "Global Resolution is faster than a maximum flow (10, 5)", TIME, ("max_flow", 10, 5), (RESOLUTION, 10, 5)
        ),
        finding(
            "Global Resolution fails more often at (100, 2) than at (10, 2)",
            SUCCESS,
            (RESOLUTION, 10, 2),
            (RESOLUTION, 100, 2),
        ),
        finding("Global Resolution takes longer than lorenz (10, 3)", TIME, (RESOLUTION, 10, 3), ("lorenz", 10, 3)),
    ),
    cases="tokens",
)
