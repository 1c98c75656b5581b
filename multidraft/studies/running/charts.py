"""The picture of a study: a panel beside the other, a colour for each row, bars for standard errors."""

from pathlib import Path
from typing import Any

from multidraft.studies import pictures
from multidraft.studies.running.tables import Table, label

KINDS = (".png", ".svg")
MARKERS = "osD^v<>PXph"


def draw(tables: list[Table], folder: Path, name: str) -> list[Path]:
    """Write the picture in both formats."""
    drawn, axes = pictures.figure(columns=len(tables), width=5.2, height=4.6)
    for axis, table in zip(axes[0], tables, strict=True):
        panel(axis, table)
    files = [folder / f"{name}{kind}" for kind in KINDS]
    for file in files:
        pictures.save(drawn, file)
    return files


def panel(axis: Any, table: Table) -> None:
    """One table; numbers along the columns are joined by lines, names are not."""
    numbers = all(not isinstance(column, str) for column in table.columns)
    places: dict[Any, Any] = {column: column if numbers else index for index, column in enumerate(table.columns)}
    for index, (name, own) in enumerate(table.rows.items()):
        style = dict(color=pictures.COLOURS[index % len(pictures.COLOURS)], marker=MARKERS[index % len(MARKERS)])
        shift = 0.0 if numbers else 0.6 * (index / max(len(table.rows) - 1, 1) - 0.5)
        x = [places[column] + shift for column in own]
        y = [table.panel.scale * e.value for e in own.values()]
        error = [table.panel.scale * (e.standard_error or 0.0) for e in own.values()]
        line = "-" if numbers else "none"
        axis.errorbar(x, y, error, linestyle=line, markersize=4, linewidth=1, label=name, **style)
    if not numbers:
        axis.set_xticks(range(len(table.columns)), map(label, table.columns), rotation=25, ha="right", fontsize="small")
    axis.set(title=table.panel.title, xlabel=table.panel.columns)
    axis.legend(frameon=False, fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)
