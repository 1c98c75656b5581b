"""Traces read from files: what a record must have, and in which order records come."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from multidraft.decoding.trace import FORMAT_VERSION
from multidraft.errors import AdviceError
from multidraft.io import journal

FIELDS: dict[str, dict[str, type]] = {  # what every record of a kind has
    "trace": {},
    "generation": {"first_row": int, "prompts": list, "walk": str},
    "step": {"row": int, "step": int, "nodes": list, "walk": list, "path": list, "last": dict},
    "end": {"tokens": list},
}
HOW = "make one with `multidraft generate --trace FILE`"


def read(path: Path) -> "Reading":
    """A trace file's records, and what is wrong with them."""
    return Reading(path, *journal.read_lines(path, "the trace"))


class Reading:
    """The lines of a trace file; a last one without its end was cut off when the run was killed."""

    def __init__(self, path: Path, lines: list[bytes], torn: bytes):
        self.path, self.cut = path, bool(torn)
        self.records = [parsed(line, f"{path} line {number}") for number, line in enumerate(lines, 1)]
        if not self.records or self.records[0]["record"] != "trace" or self.records[0].get("format") != FORMAT_VERSION:
            raise AdviceError(f"{path} is not a trace of format {FORMAT_VERSION}; {HOW}")
        self.pieces = {int(t): text for record in self.records for t, text in record.get("pieces", {}).items()}
        order = Order()
        self.misplaced = [number for number, record in enumerate(self.records, 1) if not order.fits(record)]

    def steps(self, row: int | None, step: int | None) -> Iterator[dict[str, Any]]:
        """The steps asked for."""
        for record in self.records:
            if record["record"] == "step" and row in (None, record["row"]) and step in (None, record["step"]):
                yield record

    def check_order(self) -> None:
        """Raise unless every line is in its place."""
        for number in self.misplaced:
            raise AdviceError(f"{self.path} line {number} is out of place; `replay --check` finds the rest")


def parsed(line: bytes, where: str) -> dict[str, Any]:
    """One line's record."""
    record = journal.parse(line, where, HOW)
    if not isinstance(record, dict) or not is_record(record):
        raise AdviceError(f"{where} is no record of a trace; {HOW}")
    return record


def is_record(record: dict[str, Any]) -> bool:
    """Whether what a record must have is there, each of its kind."""
    kinds = FIELDS.get(str(record.get("record")))
    pieces = record.get("pieces", {})
    return (
        kinds is not None
        and all(type(record.get(name)) is kind for name, kind in kinds.items())
        and isinstance(pieces, dict)
        and all(token.isdecimal() and isinstance(text, str) for token, text in pieces.items())
    )


class Order:
    """Records come in an order: a generation, the steps of its rows one by one, and its end."""

    def __init__(self) -> None:
        self.next_step: dict[int, int] = {}

    def fits(self, record: dict[str, Any]) -> bool:
        """Whether a record can come after those before it."""
        if record["record"] == "generation":
            self.next_step |= {record["first_row"] + row: 0 for row in range(len(record["prompts"]))}
        if record["record"] != "step":
            return True
        expected = self.next_step.get(record["row"])
        self.next_step[record["row"]] = record["step"] + 1
        return record["step"] == expected
