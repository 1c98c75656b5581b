"""The picture of a study: a panel for each table, a colour for each row, bars for 95 % intervals, one legend."""

from pathlib import Path
from typing import Any

from multidraft_research.studies import pictures
from multidraft_research.studies.running.tables import PanelTable, label

KINDS = (".png", ".svg")
MARKERS = "osD^v<>PXph"
OPTIMUM = "optimum"  # how the rows of optima end
ABOVE_ITS_OPTIMUM = "rates without a formula are averages over drawn drafts, whose noise may put one above its optimum"
ACROSS = 2  # panels beside each other

Styles = dict[str, dict[str, Any]]  # by row


def draw(tables: list[PanelTable], folder: Path, name: str, cases: str | None) -> list[Path]:
    """Write the picture in both formats; intervals are over `cases`, or there are none."""
    across = min(ACROSS, len(tables))
    figure, axes = pictures.figure(columns=across, rows=-(-len(tables) // across), width=6.2, height=4.0)
    styles = styles_of(tables)
    for axis, table in zip(axes.flat, tables, strict=False):
        panel(axis, table, styles)
    for axis in axes.flat[len(tables) :]:
        axis.set_visible(False)
    handles = {text: h for axis in axes.flat for h, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    pictures.legend(figure, handles, noise_of(tables, cases), columns=3)
    files = [folder / f"{name}{kind}" for kind in KINDS]
    for file in files:
        pictures.save(figure, file)
    return files


def noise_of(tables: list[PanelTable], cases: str | None) -> str:
    """What the bars are, or why there are none."""
    if cases is None:
        return "no bars: the values are exact"
    entries = [entry for table in tables for row in table.rows.values() for entry in row.values()]
    counts = sorted({entry.prompts for entry in entries if entry.interval})
    has_optima = any(row.endswith(OPTIMUM) for table in tables for row in table.rows)
    drawn = f"; {ABOVE_ITS_OPTIMUM}" if has_optima else ""
    if not counts:
        return f"no bars: an interval needs at least 3 {cases}{drawn}"
    return f"bars: 95 % interval over {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} {cases}{drawn}"


def styles_of(tables: list[PanelTable]) -> Styles:
    """A colour and a marker for each row, the same in all panels; optima are dashed, and so are rows beyond eight."""
    rows = dict.fromkeys(row for table in tables for row in table.rows)
    num_colours = len(pictures.COLOURS)
    return {
        row: dict(
            color=pictures.COLOURS[index % num_colours],
            marker=MARKERS[index % len(MARKERS)],
            linestyle="--" if index >= num_colours or row.endswith(OPTIMUM) else "-",
        )
        for index, row in enumerate(rows)
    }


def panel(axis: Any, table: PanelTable, styles: Styles) -> None:
    """One table; numbers along the columns are joined by lines, names are not."""
    numbers = all(not isinstance(column, str) for column in table.columns)
    places: dict[Any, Any] = {column: column if numbers else index for index, column in enumerate(table.columns)}
    for index, (name, entries) in enumerate(table.rows.items()):
        shift = 0.0 if numbers else 0.6 * (index / max(len(table.rows) - 1, 1) - 0.5)
        x = [places[column] + shift for column in entries]
        y = [table.panel.scale * e.value for e in entries.values()]
        error = [table.panel.scale * (e.interval[1] - e.value if e.interval else 0.0) for e in entries.values()]
        style = styles[name] | ({} if numbers else {"linestyle": "none"})
        axis.errorbar(x, y, error, markersize=4, linewidth=1.2, elinewidth=0.8, label=name, **style)
    if not numbers:
        axis.set_xticks(range(len(table.columns)), map(label, table.columns), rotation=30, ha="right", fontsize="small")
    scale = "log" if table.panel.logarithmic else "linear"
    axis.set(title=table.panel.title, xlabel=table.panel.columns, yscale=scale)
