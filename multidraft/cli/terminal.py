"""Output on the terminal: text coloured by kind, tables, JSON, and notes on their own lines."""

import io
import json
import logging
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

import typer

from multidraft.io import files as files

COLOURS = {"accepted": "green", "recovered": "yellow", "bonus": "cyan"}
UNDRAFTED_KIND = "undrafted"  # the kind that a token is shown as if nothing was drafted in its step; it has no colour
LEGEND = {
    "accepted": "drafted and accepted",
    "recovered": "recovered",
    "bonus": "bonus",
    UNDRAFTED_KIND: "nothing drafted",
}
CONTROL_SIGNS = {code: chr(0x2400 + code) for code in (*range(9), *range(11, 32))}  # all but tab and line feed
CONTROL_SIGNS |= {127: "\u2421"} | {code: f"\\x{code:x}" for code in range(128, 160)}  # some terminals obey these too
FILE_COLUMNS = 1000  # of a table in a file or a pipe, so that nothing wraps
MAX_MESSAGE_CHARACTERS = 600
MAX_TRACES = 100  # different tracebacks that are printed
UNFINISHED_LINE: list[str] = []  # a line break, if stdout's last line has not ended


def show(piece: str, kind: str | None = None) -> None:
    """Write a piece of text unchanged; on a terminal coloured, with control characters shown as signs."""
    if sys.stdout.isatty():
        piece = piece.translate(CONTROL_SIGNS)  # a model may emit terminal commands
    UNFINISHED_LINE[:] = [] if piece.endswith("\n") else ["\n"]
    colour = False if os.environ.get("NO_COLOR") else None  # None: only on a terminal
    typer.secho(piece, nl=False, fg=COLOURS.get(kind or ""), dim=kind is None or None, color=colour)
    sys.stdout.flush()


def visible(text: str) -> str:
    """The text with control characters replaced by visible signs."""
    return text.translate(CONTROL_SIGNS)


def legend() -> None:
    """Print the meaning of the colours."""
    for kind, meaning in LEGEND.items():
        show(f"■ {meaning}  ", kind)
    typer.echo("\n")


def heading(name: str, prompt: str) -> None:
    """Print a prompt's name, and its text or the end of a long one."""
    show(f"── {name} ──\n{prompt if len(prompt) <= 400 else f'… {prompt[-400:]}'}")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = False) -> None:
    """Print a table; `numbers` right-aligns all columns but the first."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_header=any(columns))
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if numbers and index else "left", overflow="fold", no_wrap=not index)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else FILE_COLUMNS).print(table)


def print_json(value: object) -> None:
    """Print a JSON value on stdout."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def write_json(path: Path, value: object) -> None:
    """Write a JSON value to a file atomically."""
    files.write(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode(errors="backslashreplace"))


def note(line: str) -> None:
    """Print a line on stderr, after ending an unfinished line; stdout is left to scripts."""
    with bars_away():
        typer.echo("".join(UNFINISHED_LINE) + visible(line), err=True)
    UNFINISHED_LINE.clear()


def bars_away() -> AbstractContextManager[None]:
    """Take progress bars away while a line is printed, and draw them again below it; in a file, end their line."""
    if "tqdm" not in sys.modules:
        return nullcontext()
    from tqdm import tqdm

    if not sys.stderr.isatty():
        if any(not bar.disable for bar in tqdm._instances):
            typer.echo(err=True)
        return nullcontext()
    return tqdm.external_write_mode(file=sys.stderr)


class Notes(logging.Handler):
    """Prints the library's log records as notes; of an error also what it says, after its traceback the first time."""

    def __init__(self, level: int = logging.NOTSET):
        super().__init__(level)
        self.shown_traces = set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return note(record.getMessage())
        trace = "".join(traceback.format_tb(error.__traceback__))
        if trace not in self.shown_traces and len(self.shown_traces) < MAX_TRACES:
            self.shown_traces.add(trace)
            note(f"Traceback (most recent call last):\n{trace.rstrip()}")
        note(f"{record.getMessage()} ({type(error).__name__}: {message(str(error))})")


NOTES = Notes(logging.WARNING)  # for all our loggers; the access log has its own handler


def message(text: str) -> str:
    """An error message on one line of limited length."""
    line, half = visible(" ".join(text.split())), MAX_MESSAGE_CHARACTERS // 2
    return line if len(line) <= MAX_MESSAGE_CHARACTERS else f"{line[:half]} .. {line[-half:]}"


def prepare() -> None:
    """Make the streams take any text: UTF-8 in any locale, and the null device if one is closed; print our notes."""
    logging.getLogger("multidraft").addHandler(NOTES)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))
    for stream, errors in (sys.stdin, "replace"), (sys.stdout, "backslashreplace"), (sys.stderr, "backslashreplace"):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def drop_stdout() -> None:
    """Drop stdout's unwritten output; else Python would retry at exit and print an error."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
