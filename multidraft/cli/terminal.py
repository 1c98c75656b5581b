"""What people and scripts see: pieces of text, coloured by origin, tables, JSON, and notes on lines of their own."""

import io
import json
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import typer

from multidraft.io import files as outputs

COLOURS = {"accepted": "green", "corrected": "yellow", "bonus": "cyan"}
LEGEND = {"accepted": "drafted and accepted", "corrected": "corrected", "bonus": "bonus"}
CONTROL = {code: chr(0x2400 + code) for code in (*range(9), *range(11, 32))}  # all but tab and line feed
CONTROL |= {127: "\u2421"} | {code: f"\\x{code:x}" for code in range(128, 160)}  # some terminals obey these too
WIDE = 1000  # columns of a table that goes into a file or a pipe: nothing wraps
LONGEST = 600  # characters of a message
OPEN: list[str] = []  # what ends the line of text that stdout shows, if one is unfinished


def show(piece: str, kind: str | None = None) -> None:
    """Write a piece of text as it is, coloured where stdout is a terminal."""
    if sys.stdout.isatty():
        piece = piece.translate(CONTROL)  # a model may emit any byte, also those that command a terminal
    OPEN[:] = [] if piece.endswith("\n") else ["\n"]
    colour = False if os.environ.get("NO_COLOR") else None  # None: only on a terminal
    typer.secho(piece, nl=False, fg=COLOURS.get(kind or ""), dim=kind is None or None, color=colour)
    sys.stdout.flush()


def visible(text: str) -> str:
    """The text with its control characters as signs that stand for them."""
    return text.translate(CONTROL)


def legend() -> None:
    """The colours on one line."""
    for kind, meaning in LEGEND.items():
        show(f"■ {meaning}  ", kind)
    typer.echo("\n")


def heading(name: str, prompt: str) -> None:
    """A prompt's name, and its text (the end of a long one), which the model's text follows."""
    show(f"── {name} ──\n{prompt if len(prompt) <= 400 else f'… {prompt[-400:]}'}")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = False) -> None:
    """A table; `numbers` sets all columns but the first flush right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_header=any(columns))
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if numbers and index else "left", overflow="fold", no_wrap=not index)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDE).print(table)


def print_json(value: object) -> None:
    """One JSON value on stdout."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def write_json(path: Path, value: object) -> None:
    """One JSON value in a file, whole or not at all."""
    outputs.write(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode(errors="backslashreplace"))


def note(line: str) -> None:
    """A line for people, on stderr, so that stdout stays what scripts read; it ends a line of text that is shown."""
    typer.echo("".join(OPEN) + visible(line), err=True)
    OPEN.clear()


class Notes(logging.Handler):
    """The library's notes, as ours."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


NOTES = Notes(logging.WARNING)  # for all loggers below ours; the access log, which is information, has its own


def message(text: str) -> str:
    """What went wrong, on one line that no input can make endless."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} .. {line[-LONGEST // 2 :]}"


def prepare() -> None:
    """Streams that take any text: UTF-8 whatever the locale says, and nowhere where one is closed; our own notes."""
    logging.getLogger("multidraft").addHandler(NOTES)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))
    for stream, errors in (sys.stdin, "replace"), (sys.stdout, "backslashreplace"), (sys.stderr, "backslashreplace"):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def give_up() -> None:
    """Forget what stdout did not take, or Python would try again at the end and say so."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
