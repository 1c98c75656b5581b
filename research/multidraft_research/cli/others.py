"""The studies whose cases are no prompts, as parts of `study all`: `solve-time`, `walks`, `toys` and `curves`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from multidraft.cli import terminal
from multidraft.machine import versions
from multidraft_research.cli import curves as curves_command
from multidraft_research.cli import solve_time as solve_time_command
from multidraft_research.cli.measured import StudyRequest, captured_for, finish, write_records

if TYPE_CHECKING:
    from multidraft_research.studies.running.results import Results

ABOUT = {
    "solve-time": "Time, success, acceptance and exactness of every solver of the optimal transport problem.",
    "walks": "What each walk accepts over tiny trees, exactly, beside the most that any lossless use could.",
    "toys": "Acceptance by number of drafts for pairs of coins and of uniform distributions.",
    "curves": "The two curves that set the optimum, and the schedule of the rule lorenz, at a captured position.",
}
WALKED = {True: (2, 3), False: (3, 6)}  # tokens and random cases, by whether it is to be quick
SOLVED = {True: (2, 1.0), False: (4, 10.0)}  # tokens of each size, and seconds after which a method stops


def solve_time(name: str, request: StudyRequest) -> "Results":
    """At the paper's sizes, one after another whoever else could help, because seconds are what counts."""
    from multidraft.io.journal import Journal
    from multidraft_research.studies.on_cases.solve_time import STUDY, records
    from multidraft_research.studies.solve_time import PAPER_SIZES

    tokens, limit = SOLVED[request.quick]
    sources = solve_time_command.sources(captured_for(request), request.seed)
    tokens = min(tokens, *(len(recording) for recording in sources.values()))
    journal = Journal(
        request.out / f"{name}.jsonl", solve_time_command.settings(sources, limit, request.seed), request.wait
    )
    if not solve_time_command.measure_cases(journal, sources, PAPER_SIZES, tokens, limit, request.seed, None):
        raise KeyboardInterrupt(f"stopped; {journal.path} keeps what is done, and the same command goes on")
    cells = list(records(solve_time_command.results(journal)))
    return write_records(name, ABOUT[name], STUDY, cells, journal.settings, request.out)


def walks(name: str, request: StudyRequest) -> "Results":
    """Random cases take the place of prompts."""
    from multidraft.io.journal import Journal
    from multidraft_research.studies.on_cases.walks import STUDY, OverTables

    vocabulary, cases = WALKED[request.quick]
    settings = {"study": name, "vocabulary": vocabulary, "cases": cases, "seed": request.seed} | versions("scipy")
    journal = Journal(request.out / f"{name}.jsonl", settings, request.wait)
    finish(name, OverTables(vocabulary, request.seed), cases, journal, request)
    return write_records(name, ABOUT[name], STUDY, journal.records, journal.settings, request.out)


def toys(name: str, request: StudyRequest) -> "Results":
    """The same on every machine."""
    from multidraft_research.studies.on_cases.toys import STUDY, record

    return write_records(name, ABOUT[name], STUDY, [record()], {"study": name}, request.out)


def curves(name: str, request: StudyRequest) -> "Results | None":
    """None, with a word of it, where no captured position will do."""
    from multidraft_research.studies.curves import draw
    from multidraft_research.studies.on_cases.curves import STUDY, first_telling, record

    capture = captured_for(request)
    telling = first_telling(capture)
    if telling is None:
        terminal.note("no captured position has an optimum between 0.6 and 0.8: there is no picture of curves")
        return None
    case, prompt = telling
    names = [name_of(token, request) for token in case.tokens]
    settings = {"study": name, "capture": capture.fingerprint, "prompt": prompt, "position": case.position}
    results = write_records(name, ABOUT[name], STUDY, [record(case, names, prompt)], settings, request.out)
    for kind in (".png", ".svg"):
        draw(case, names, request.out / f"{name}{kind}")
    return results


def name_of(token: int, request: StudyRequest) -> str:
    """Its text where the tokenizer is known, else its number."""
    if request.capture is not None:
        return f"token {token}"
    return curves_command.piece(request.source.read()[0].tokenizer, token)


OTHERS: dict[str, Callable[[str, StudyRequest], "Results | None"]] = {
    "solve-time": solve_time,
    "walks": walks,
    "toys": toys,
    "curves": curves,
}
