"""`multidraft study all`: every study on one pair, and all of it as one page to read and to mail."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multidraft.cli import terminal
from multidraft.errors import AdviceError, optional
from multidraft.io import files
from multidraft.machine import commit, hardware, versions
from multidraft_research.cli.measured import StudyRequest, measure_study
from multidraft_research.cli.others import OTHERS
from multidraft_research.studies.listed import LISTED

if TYPE_CHECKING:
    from multidraft_research.studies.running.results import Results

ABOUT = "All of the studies that follow the papers, on one pair, and a report of them in HTML."
REPORT = "report.html"
SOLVERS = {"scipy.optimize": "SciPy", "ortools": "OR-Tools"}


def everything(request: StudyRequest, as_json: bool) -> None:
    """Measure what is missing, and write the report."""
    from multidraft_research.studies.running.results import FINDINGS

    if len(request.drafts) > 1:
        raise AdviceError("`study all` takes one --draft; several are compared by each study, such as `study blocks`")
    for module, package in SOLVERS.items():
        optional(module, package, "transport")  # rather than after hours
    done: dict[str, Results] = {}
    for name, results in all_measured(request):
        done[name] = results
        files.write(request.out / REPORT, report(done, request).encode())  # of what there is so far
    if as_json:
        return terminal.print_json({name: results.as_data() for name, results in done.items()})
    rows = [[name, *row] for name, results in done.items() for row in results.findings]
    terminal.print_table(["study", *FINDINGS], rows)
    terminal.note(f"wrote {request.out / REPORT}")


def all_measured(request: StudyRequest) -> "Iterator[tuple[str, Results]]":
    """Every study; over a capture that was given, those that need no models."""
    for name, listed in LISTED.items():
        if request.capture is None or not listed.on_models:
            yield name, measure_study(name, request)
    for name, measure in OTHERS.items():
        if results := measure(name, request):
            yield name, results


def report(done: "dict[str, Results]", request: StudyRequest) -> str:
    """The page."""
    from multidraft_research.studies.running.report import page

    first = next(iter(done.values())).settings
    shown = {name: (results, (request.out / f"{name}.svg").read_bytes()) for name, results in done.items()}
    return page(f"multidraft on {first['target']} and {first['draft']}", facts(request), shown)


def facts(request: StudyRequest) -> dict[str, Any]:
    """What the numbers depend on."""
    facts_of_source = of_capture(request.capture) if request.capture is not None else of_source(request)
    return facts_of_source | {"seed": request.seed, "commit": commit()} | hardware() | versions("scipy", "ortools")


def of_capture(folder: Path) -> dict[str, Any]:
    """What was captured."""
    from multidraft_research.captures.folder import Capture

    capture = Capture.open(folder)
    return {"capture": str(folder), "prompts": len(capture.entries), "positions": capture.positions}


def of_source(request: StudyRequest) -> dict[str, Any]:
    """Models and prompts."""
    limit = request.source.limit or "all of them"
    return request.source.names | {
        "prompts": request.source.prompts.name,
        "limit": limit,
        "new tokens": request.new_tokens,
    }
