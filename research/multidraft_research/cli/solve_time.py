"""`multidraft study solve-time`: the solve time, success, acceptance and exactness of every solver, side by side."""

import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from multidraft.cli import options as o
from multidraft.cli import terminal
from multidraft.errors import AdviceError
from multidraft.io import files
from multidraft.machine import hardware, versions
from multidraft_research.cli.capture import Source, make_capture
from multidraft_research.studies import pictures

if TYPE_CHECKING:
    from multidraft.io.journal import Journal
    from multidraft_research.captures.folder import Capture
    from multidraft_research.captures.recording import Recording
    from multidraft_research.studies.solve_time import Result
    from multidraft_research.studies.solve_time_table import Best, MethodLine

SIZE = re.compile(r"[1-9]\d{0,5}")  # tokens or drafts
RECORDED_TOKENS = 16  # of each of the six prompts


def solve_time(
    out: Annotated[Path, Option(help="Folder of the run; the same command goes on where it was stopped.")] = Path(
        "runs/solve-time"
    ),
    capture: Annotated[Path | None, Option(help="A folder of `multidraft capture`. Default: embedded pair.")] = None,
    size: Annotated[
        list[str] | None,
        Option(help="k,n: top k tokens, n drafts; may be repeated. Default: the paper's and more."),
    ] = None,
    tokens: Annotated[int, Option(min=1, help="Tokens for each size and source.")] = 30,
    limit_seconds: Annotated[float, Option(min=0.001, help="A method that takes longer for one token stops.")] = 10.0,
    method: Annotated[list[str] | None, Option(help="Only these methods; may be repeated.")] = None,
    plot: Annotated[Path | None, Option(help="Draw the table into this file (.svg, .png).")] = None,
    seed: Annotated[int, Option(min=0, max=2**32)] = 0,
    wait: o.Wait = False,
    as_json: Annotated[bool, Option("--json", help="Print JSON, and progress on stderr.")] = False,
) -> None:
    """Compare all solvers of the optimal transport problem of i.i.d. drafts: time for a token, success, exactness."""
    from multidraft.io.journal import Journal
    from multidraft_research.studies.solve_time import LARGER_SIZES, PAPER_SIZES

    sizes = [parse_size(text) for text in size] if size else PAPER_SIZES + LARGER_SIZES
    check_methods(method, limit_seconds)
    if plot is not None:
        pictures.check(plot)
    files.make_folder(out, "--out")
    known = pairs(out, capture, seed, wait)
    journal = Journal(out / "results.jsonl", settings(known, limit_seconds, seed), wait)
    interrupted = not measure_cases(journal, known, sizes, tokens, limit_seconds, seed, method)
    report(results(journal), journal.path, plot, as_json, interrupted)
    if interrupted:
        raise KeyboardInterrupt(f"stopped; {journal.path} keeps what is done, and the same command goes on")


def parse_size(text: str) -> tuple[int, int]:
    """k and n from "k,n"."""
    parts = text.split(",")
    if len(parts) != 2 or not all(SIZE.fullmatch(part.strip()) for part in parts):
        raise AdviceError(f"{text!r} is no size; give two whole numbers such as --size 100,2 for k = 100 and n = 2")
    return int(parts[0]), int(parts[1])


def check_methods(chosen: list[str] | None, limit: float) -> None:
    """Raise on a method that there is not."""
    from multidraft_research.studies.solvers import methods

    known = methods(limit)
    if unknown := set(chosen or ()) - set(known):
        raise AdviceError(f"no method {', '.join(sorted(unknown))}; choose from {', '.join(known)}")


def pairs(out: Path, capture: Path | None, seed: int, wait: bool = False) -> "dict[str, Recording]":
    """The recorded pair, which a run keeps in its folder, and the synthetic one."""
    from multidraft_research.captures.capturing import Manner
    from multidraft_research.captures.folder import Capture

    if capture is None:
        known = make_capture(Source(None, None), Manner(RECORDED_TOKENS, seed=seed), out / "capture", wait=wait)
    else:
        known = Capture.open(capture)
    return sources(known, seed)


def sources(capture: "Capture", seed: int) -> "dict[str, Recording]":
    """The first positions of a captured pair, and the synthetic one."""
    from multidraft_research.studies.solve_time import POSITIONS, VOCABULARY, power_law_pairs

    return {"recorded": capture.first(POSITIONS), "synthetic": power_law_pairs(POSITIONS, VOCABULARY, seed)}


def settings(sources: "dict[str, Recording]", limit: float, seed: int) -> dict[str, object]:
    """All that the results depend on besides what each line says itself."""
    from multidraft_research.studies.solve_time import fingerprint

    pairs = {f"{name} pair": fingerprint(recording) for name, recording in sources.items()}
    packages = versions("scipy", "ortools")
    return {"study": "solve-time", **pairs, "limit_seconds": limit, "seed": seed, **hardware(), **packages}


def measure_cases(
    journal: "Journal",
    sources: "dict[str, Recording]",
    sizes: list[tuple[int, int]],
    tokens: int,
    limit: float,
    seed: int,
    chosen: list[str] | None,
) -> bool:
    """Measure what is missing, with a progress bar; False where Ctrl-C came first."""
    from tqdm import tqdm

    from multidraft_research.studies.solve_time import measure, tasks, warm_up
    from multidraft_research.studies.solvers import methods

    known = {name: method for name, method in methods(limit).items() if name in (chosen or methods(limit))}
    chosen_tasks = tasks(sources, sizes, tokens, known)
    warm_up(known)
    try:
        bar = tqdm(chosen_tasks, desc="solving", unit="answer")
        for result in measure(bar, sources, known, limit, results(journal), seed):
            journal.append(asdict(result))
    except KeyboardInterrupt:
        return False
    return True


def results(journal: "Journal") -> "list[Result]":
    """What the journal holds."""
    from multidraft_research.studies.solve_time import Result

    return [Result(**record) for record in journal.records]


def report(results: "list[Result]", path: Path, plot: Path | None, as_json: bool, interrupted: bool) -> None:
    """Tables for people or one JSON object, and the picture."""
    from multidraft_research.studies.solve_time_picture import draw
    from multidraft_research.studies.solve_time_table import best, lines

    table, within = lines(results), best(results)
    if plot is not None and table:
        draw(table, plot)
    if as_json:
        return terminal.print_json(as_data(table, within, path, interrupted))
    for source in dict.fromkeys(line.source for line in table):
        print_source(source, [line for line in table if line.source == source])
    print_best(within)
    terminal.note(
        "Measured here. What the paper prints, on its own hardware: "
        "research/multidraft_research/studies/printed/global_resolution.py"
    )


def as_data(table: "list[MethodLine]", within: "list[Best]", path: Path, interrupted: bool) -> dict[str, object]:
    """All numbers, ours and the paper's."""
    from multidraft_research.studies.printed.global_resolution import printed_numbers

    return {
        "hardware": hardware(),
        "versions": versions("scipy", "ortools"),
        "interrupted": interrupted,
        "answers": str(path),
        "results": [asdict(line) | {"success": line.success} for line in table],
        "best": [asdict(entry) for entry in within],
        "printed_in_the_paper": printed_numbers(),
    }


def print_source(source: str, table: "list[MethodLine]") -> None:
    """Four tables of one source, a method a row."""
    print_cells(f"{source}: milliseconds for a token (share solved)", table, time_cell)
    print_cells(f"{source}: time / time of lorenz", table, lambda line: number(line.over_lorenz, ".3g"))
    print_cells(f"{source}: acceptance / optimum, %", table, lambda line: number(line.share, ".2%").rstrip("%"))
    print_cells(f"{source}: total variation from the target", table, variation_cell)


def print_cells(title: str, table: "list[MethodLine]", cell: "Callable[[MethodLine], str]") -> None:
    """A table with a method a row and a problem a column."""
    cells = {(line.method, line.k, line.n): cell(line) for line in table}
    columns = list(dict.fromkeys((line.k, line.n) for line in table))
    rows = [[m, *(cells.get((m, k, n), "") for k, n in columns)] for m in dict.fromkeys(line.method for line in table)]
    typer.echo(title)
    terminal.print_table(["k,n", *(f"{k},{n}" for k, n in columns)], rows, numbers=True)


def time_cell(line: "MethodLine") -> str:
    """Mean time of what was solved, with the share where that is not all; or why nothing was."""
    if line.milliseconds is None:
        return line.stopped or "0 %"
    share = "" if line.solved == line.tried else f" ({100 * line.success:.0f} %)"
    return f"{line.milliseconds:.3g}{share}{' then ' + line.stopped if line.stopped else ''}"


def variation_cell(line: "MethodLine") -> str:
    """What was computed, or what a theorem says."""
    if line.by == "formula":
        return "0 (proof)"
    return ("< " if "bound" in line.by else "") + number(line.total_variation, ".0e")


def number(value: float | None, form: str) -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else format(value, form)


def print_best(within: "list[Best]") -> None:
    """The paper's Table 2."""
    columns = list(dict.fromkeys((b.source, b.limit) for b in within))
    cells = {(b.method, b.source, b.limit): best_cell(b) for b in within}
    rows = [[m, *(cells.get((m, *column), "") for column in columns)] for m in dict.fromkeys(b.method for b in within)]
    typer.echo("best acceptance within a mean time, %, and the k,n that gives it")
    terminal.print_table(["method", *(f"{source}, {limit} ms" for source, limit in columns)], rows, numbers=True)


def best_cell(entry: "Best") -> str:
    """Acceptance and where it is reached."""
    return "-" if entry.acceptance_rate is None else f"{100 * entry.acceptance_rate:.2f} ({entry.k},{entry.n})"
