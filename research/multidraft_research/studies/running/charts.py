"""The picture of a study: a panel for each table, a colour for each row, bars for standard errors, one legend."""

from pathlib import Path
from typing import Any

from multidraft_research.studies import pictures
from multidraft_research.studies.running.tables import Table, label

KINDS = (".png", ".svg")
MARKERS = "osD^v<>PXph"
ACROSS = 2  # panels beside each other

Styles = dict[str, dict[str, Any]]  # by row


def draw(tables: list[Table], folder: Path, name: str) -> list[Path]:
    """Write the picture in both formats."""
    across = min(ACROSS, len(tables))
    figure, axes = pictures.figure(columns=across, rows=-(-len(tables) // across), width=6.2, height=4.0)
    styles = styles_of(tables)
    for axis, table in zip(axes.flat, tables, strict=False):
        panel(axis, table, styles)
    for axis in axes.flat[len(tables) :]:
        axis.set_visible(False)
    handles = {text: h for axis in axes.flat for h, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    files = [folder / f"{name}{kind}" for kind in KINDS]
    for file in files:
        pictures.save(figure, file)
    return files


def styles_of(tables: list[Table]) -> Styles:
    """A colour and a marker for each row, the same in all panels; optima are dashed, and so are rows beyond eight."""
    rows = dict.fromkeys(row for table in tables for row in table.rows)
    num_colours = len(pictures.COLOURS)
    return {
        row: dict(
            color=pictures.COLOURS[index % num_colours],
            marker=MARKERS[index % len(MARKERS)],
            linestyle="--" if index >= num_colours or row.endswith("optimum") else "-",
        )
        for index, row in enumerate(rows)
    }


def panel(axis: Any, table: Table, styles: Styles) -> None:
    """One table; numbers along the columns are joined by lines, names are not."""
    numbers = all(not isinstance(column, str) for column in table.columns)
    places: dict[Any, Any] = {column: column if numbers else index for index, column in enumerate(table.columns)}
    for index, (name, entries) in enumerate(table.rows.items()):
        shift = 0.0 if numbers else 0.6 * (index / max(len(table.rows) - 1, 1) - 0.5)
        x = [places[column] + shift for column in entries]
        y = [table.panel.scale * e.value for e in entries.values()]
        error = [table.panel.scale * (e.standard_error or 0.0) for e in entries.values()]
        style = styles[name] | ({} if numbers else {"linestyle": "none"})
        axis.errorbar(x, y, error, markersize=4, linewidth=1.2, elinewidth=0.8, label=name, **style)
    if not numbers:
        axis.set_xticks(range(len(table.columns)), map(label, table.columns), rotation=30, ha="right", fontsize="small")
    scale = "log" if table.panel.logarithmic else "linear"
    axis.set(title=table.panel.title, xlabel=table.panel.columns, yscale=scale)
