"""What has been found so far, for people (`report.md`) and for programs (`report.json`)."""

import json
from pathlib import Path
from typing import Any

from multidraft.io import files as outputs
from on_gpu.asked import Line
from on_gpu.bounds import __doc__ as meaning_of_bounds
from on_gpu.bounds import bounds
from on_gpu.pieces import PIECES


def write_report(out: Path, settings: dict[str, Any], records: dict[str, dict[str, Any]]) -> None:
    """Both files."""
    limits = bounds({name: record["lines"] for name, record in records.items()})
    days = sorted({record["day"] for record in records.values()})
    parts = [
        heading(settings, " to ".join(dict.fromkeys([days[0], days[-1]]))),
        *(section(piece.name, records.get(piece.name)) for piece in PIECES),
    ]
    parts += [f"## bounds\n\n{meaning_of_bounds}", table(limits)] if limits else []
    outputs.write(out / "report.md", "\n\n".join([*parts, ""]).encode())
    whole = dict(settings=settings, pieces=records, bounds=limits)
    outputs.write(out / "report.json", json.dumps(whole, indent=1).encode())


def heading(settings: dict[str, Any], days: str) -> str:
    """Where, when and with what."""
    machine, versions = settings["hardware"], shown(settings["versions"])
    where = machine["gpu"] if settings["device"] != "cpu" else f"{machine['cpu']}, threads: {machine['threads']}"
    lines = [f"# {where}", f"{days}, commit {settings['commit']}; {versions}."]
    lines += ["Compiled means: both models. Milliseconds are medians."]
    lines += ["**Tiny shapes: this shows that all runs, and says nothing of speed.**"] * settings["quick"]
    return "\n\n".join(lines)


def section(name: str, record: dict[str, Any] | None) -> str:
    """A piece's table, or why there is none."""
    if record is None:
        return f"## {name}\n\nNot run yet."
    status_line = f"{record['status']}{': ' * bool(record['why'])}{record['why']} ({record['seconds']:.0f} seconds)."
    return "\n\n".join([f"## {name}", status_line, *([table(record["lines"])] if record["lines"] else [])])


def table(lines: list[Line]) -> str:
    """Markdown."""
    columns = list(lines[0])
    rows = [[column.replace("_", " ") for column in columns], ["---"] * len(columns)]
    rows += [[shown(line.get(column)) for column in columns] for line in lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def shown(value: Any) -> str:
    """A value as people read it."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(part)}" for name, part in value.items())
    if isinstance(value, (int, float)):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return "" if value is None else str(value)
