"""What `multidraft-judge --measure` does: it reads prompts, measures, and prints the table."""

import json
from pathlib import Path

import typer

from multidraft_judge.measuring.measurement import TEMPERATURES, measure
from multidraft_judge.measuring.rows import Measurement
from multidraft_judge.prompts import default_prompts, read_prompts
from multidraft_judge.terminal import print_table, progress_bar


def measure_and_show(
    url: str,
    model: str | None,
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
    with progress_bar("answers", total) as progress:
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
            progress=progress,
        )
    typer.echo(json.dumps(measurement.as_json(), indent=2)) if as_json else show_measurement(measurement)


def show_measurement(measurement: Measurement) -> None:
    """Print the table, how its numbers were made, and what has to be said of them."""
    print_table(measurement.heads, measurement.cells())
    for note in measurement.notes:
        typer.echo(f"note: {note}")
    ways = ", ".join(f"{server}: {way}" for server, way in measurement.counted_by.items())
    typer.echo(f"tokens by {ways}; in brackets 95 % over prompts (jackknife, Student's t); speeds: geometric means")
