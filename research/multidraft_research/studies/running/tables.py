"""The tables of a study: for people as strings, for scripts as numbers."""

from collections.abc import Iterator
from dataclasses import dataclass

from multidraft_research.studies.running.cells import Estimate, Place
from multidraft_research.studies.running.study import Panel

WIDEST = 12  # columns


@dataclass(frozen=True)
class PanelTable:
    """A panel with its entries; where a row has none in a column, it is left out."""

    panel: Panel
    columns: list[str | float]
    rows: dict[str, dict[str | float, Estimate]]

    def strings(self) -> tuple[list[str], list[list[str]]]:
        """The head and the rows; what is far wider than high is turned."""
        lines = [[self.panel.columns, *map(label, self.columns)]]
        lines += [[name, *(self.entry(entries.get(c)) for c in self.columns)] for name, entries in self.rows.items()]
        if len(self.columns) > WIDEST:
            lines = [list(line) for line in zip(*lines, strict=True)]
        return lines[0], lines[1:]

    def entry(self, estimate: Estimate | None) -> str:
        """A number with its standard error."""
        if estimate is None:
            return ""
        scale, digits = self.panel.scale, self.panel.digits
        value = f"{scale * estimate.value:z.{digits}f}"
        return value if estimate.standard_error is None else f"{value} ± {scale * estimate.standard_error:.{digits}f}"


def label(column: str | float) -> str:
    """The name of a column."""
    return column if isinstance(column, str) else f"{column:g}"


def tables(panels: dict[str, Panel], estimates: dict[Place, Estimate]) -> Iterator[PanelTable]:
    """A table for every panel that has entries."""
    for name, panel in panels.items():
        rows: dict[str, dict[str | float, Estimate]] = {}
        for (panel_name, row, column), estimate in estimates.items():
            if panel_name == name:
                rows.setdefault(row, {})[column] = estimate
        if rows:
            columns = list(dict.fromkeys(column for panel_name in rows.values() for column in panel_name))
            yield PanelTable(panel, columns, rows)


def as_data(estimates: dict[Place, Estimate]) -> list[dict[str, object]]:
    """Every entry with its 95 % interval."""
    return [
        dict(
            panel=panel,
            row=row,
            column=column,
            value=estimate.value,
            standard_error=estimate.standard_error,
            interval=estimate.interval,
            prompts=estimate.prompts,
        )
        for (panel, row, column), estimate in estimates.items()
    ]
