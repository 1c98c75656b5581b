"""What came out of a study: its tables, its picture, what became of the findings, and what its paper prints."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from multidraft.studies.journal import Record
from multidraft.studies.printed.tables import printed
from multidraft.studies.running import charts
from multidraft.studies.running.cells import Estimate, Place, Sums, ratio, sums
from multidraft.studies.running.study import Judged, Study, judged
from multidraft.studies.running.tables import Table, as_data, tables

Shown = tuple[str, list[str], list[list[str]]]  # title, head, rows


@dataclass(frozen=True)
class Results:
    """A study's numbers, with the settings that they depend on."""

    study: Study
    settings: dict[str, Any]
    found: dict[Place, Sums]

    @classmethod
    def of(cls, study: Study, records: list[Record], settings: dict[str, Any]) -> "Results":
        """From the records of a journal."""
        return cls(study, settings, study.derived(sums(records)))

    @property
    def estimates(self) -> dict[Place, Estimate]:
        """Every entry of every table."""
        return {place: ratio(own) for place, own in self.found.items()}

    @property
    def tables(self) -> list[Table]:
        """Every table."""
        return list(tables(self.study.panels, self.estimates))

    @property
    def judged(self) -> list[Judged]:
        """What became of every finding."""
        return judged(self.study, self.found)

    def draw(self, folder: Path, name: str) -> list[Path]:
        """The picture, in both formats."""
        return charts.draw(self.tables, folder, name)

    def shown(self) -> Iterator[Shown]:
        """Tables of strings: ours, the findings, the paper's."""
        for table in self.tables:
            yield (f"{table.panel.title} (measured here)", *table.strings())
        if self.judged:
            yield f"What {self.study.paper} reports, on this pair", *findings(self.judged)
        for name in self.study.printed:
            theirs = printed(name)
            yield f"Printed in {theirs.where}: other models, other hardware", theirs.columns, theirs.rows

    def as_data(self) -> dict[str, Any]:
        """All of it for scripts."""
        return self.settings | {
            "entries": as_data(self.estimates),
            "findings": [asdict(one) for one in self.judged],
            "printed_in_the_paper": [asdict(printed(name)) for name in self.study.printed],
        }


def findings(judged: list[Judged]) -> tuple[list[str], list[list[str]]]:
    """A row for each finding, with the paired difference in the units of the table."""
    head = ["finding", "on this pair", "difference", "95 % interval"]
    return head, [[one.finding.text, one.verdict, f"{one.gap.value:+.4f}", interval(one.gap)] for one in judged]


def interval(gap: Estimate) -> str:
    """From where to where."""
    return "one prompt gives none" if gap.interval is None else f"{gap.interval[0]:+.4f} to {gap.interval[1]:+.4f}"
