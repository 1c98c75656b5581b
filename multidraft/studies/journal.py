"""Results of a long run as JSON lines, written one by one: a run that is killed goes on where it was."""

import json
from pathlib import Path
from typing import Any

from multidraft.errors import AdviceError

Record = dict[str, Any]


class Journal:
    """`records` holds what the file at `path` does, which begins with the settings that the results depend on.

    A last line that a kill has torn is dropped. Raises AdviceError for a file of a run with other settings, and for one
    that is no journal.
    """

    def __init__(self, path: Path, settings: Record):
        self.path = path
        settings = json.loads(json.dumps(settings))
        lines = read(path)
        self.records = lines[1:]
        if not lines:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(settings)
        elif lines[0] != settings:
            raise AdviceError(f"{str(path)!r} {difference(lines[0], settings)}; write to another folder, or remove it")

    def append(self, record: Record) -> None:
        """Write a result, and keep it."""
        self._write(record)
        self.records.append(record)

    def _write(self, record: Record) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def read(path: Path) -> list[Record]:
    """The lines of a journal, if there is one; a torn last line is removed from the file too."""
    if not path.exists():
        return []
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    try:
        lines = [json.loads(line) for line in whole.splitlines()]
    except ValueError:
        lines = [None]
    if not all(isinstance(line, dict) for line in lines):
        raise AdviceError(f"{str(path)!r} is no journal of a study; write to another folder, or remove it")
    if whole != text:
        path.write_bytes(whole)
    return lines


def difference(old: Record, new: Record) -> str:
    """Which settings of a run were others, in words."""
    names = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    return "is of a run with " + ", ".join(f"{name} {old.get(name)!r} instead of {new.get(name)!r}" for name in names)
