"""What `multidraft-judge --measure` does: it reads prompts, measures, and prints the table."""

import json
import sys
from pathlib import Path

import typer
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from multidraft_judge.measuring.measurement import TEMPERATURES, measure
from multidraft_judge.measuring.rows import Measurement
from multidraft_judge.prompts import default_prompts, read_prompts

WIDTH = 1000  # of a table that is not shown on a screen


def measure_and_show(
    url: str,
    model: str,
    plain: str | None,
    file: Path | None,
    limit: int | None,
    temperatures: list[float] | None,
    max_tokens: int,
    timeout: float,
    api_key: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure, and print what was measured."""
    prompts = default_prompts() if file is None else read_prompts(file, limit)
    chosen = temperatures or list(TEMPERATURES)
    total = len(prompts) * len(chosen) * (1 if plain is None else 2)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("answers", total=total)
        measurement = measure(
            url,
            model,
            plain=plain,
            prompts=prompts,
            temperatures=chosen,
            max_tokens=max_tokens,
            timeout=timeout,
            api_key=api_key,
            out=out,
            progress=lambda done: progress.update(bar, completed=done),
        )
    typer.echo(json.dumps(measurement.as_json(), indent=2)) if as_json else show_measurement(measurement)


def show_measurement(measurement: Measurement) -> None:
    """Print the table, how its numbers were made, and what has to be said of them."""
    table = Table(*measurement.heads, box=box.SIMPLE_HEAD)
    for cells in measurement.cells():
        table.add_row(*cells)
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDTH).print(table)
    for note in measurement.notes:
        typer.echo(f"note: {note}")
    ways = ", ".join(f"{server}: {way}" for server, way in measurement.counted_by.items())
    typer.echo(f"tokens by {ways}; in brackets 95 % over prompts (jackknife, Student's t); speeds: geometric means")
