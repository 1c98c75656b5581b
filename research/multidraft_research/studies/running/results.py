"""What came out of a study: its tables, its picture, what became of the findings, and what its paper prints."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from multidraft.io.journal import Record
from multidraft_research.studies.printed.tables import printed_table
from multidraft_research.studies.running import charts
from multidraft_research.studies.running.cells import Estimate, Place, Sums, ratio, sums
from multidraft_research.studies.running.study import Judged, Study, judge_findings
from multidraft_research.studies.running.tables import PanelTable, as_data, tables

FINDINGS = ["finding", "on this pair", "difference", "95 % interval"]
Shown = tuple[str, list[str], list[list[str]]]  # title, head, rows


@dataclass(frozen=True)
class Results:
    """A study's numbers, with the settings that they depend on."""

    study: Study
    settings: dict[str, Any]
    sums_by_place: dict[Place, Sums]

    @classmethod
    def of(cls, study: Study, records: list[Record], settings: dict[str, Any]) -> "Results":
        """From the records of a journal."""
        return cls(study, settings, study.derived(sums(records)))

    @property
    def estimates(self) -> dict[Place, Estimate]:
        """Every entry of every table."""
        return {place: ratio(sums_of_place) for place, sums_of_place in self.sums_by_place.items()}

    @property
    def tables(self) -> list[PanelTable]:
        """Every table."""
        return list(tables(self.study.panels, self.estimates))

    @property
    def verdicts(self) -> list[Judged]:
        """What became of every finding."""
        return judge_findings(self.study, self.sums_by_place)

    @property
    def findings(self) -> list[list[str]]:
        """A row for each finding, with the paired difference in the units of its table."""
        return [self.row(finding) for finding in self.verdicts]

    def row(self, finding: Judged) -> list[str]:
        """What became of a finding."""
        panel = self.study.panels[finding.finding.above[0]]
        scale, digits = panel.scale, panel.digits
        error = "" if finding.gap.standard_error is None else f" ± {scale * finding.gap.standard_error:.{digits}f}"
        ends = [f"{scale * end:+z.{digits}f}" for end in finding.gap.interval or ()]
        difference = f"{scale * finding.gap.value:+z.{digits}f}{error}"
        return [finding.finding.text, finding.verdict, difference, " to ".join(ends) or "too few prompts"]

    def draw(self, folder: Path, name: str) -> list[Path]:
        """The picture, in both formats."""
        return charts.draw(self.tables, folder, name, self.study.cases)

    def printed_tables(self) -> Iterator[Shown]:
        """Tables of strings: ours, the findings, the paper's."""
        for table in self.tables:
            yield (f"{table.panel.title} (measured here)", *table.strings())
        if self.verdicts:
            yield f"What {self.study.paper} reports, on this pair", FINDINGS, self.findings
        for name in self.study.printed:
            theirs = printed_table(name)
            yield f"Printed in {theirs.where}: other models, other hardware", theirs.columns, theirs.rows

    def as_data(self) -> dict[str, Any]:
        """All of it for scripts."""
        return self.settings | {
            "entries": as_data(self.estimates),
            "findings": [asdict(finding) for finding in self.verdicts],
            "printed_in_the_paper": [asdict(printed_table(name)) for name in self.study.printed],
        }
