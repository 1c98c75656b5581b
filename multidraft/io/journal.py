"""Results of a long run as JSON lines, written one by one: a run that is stopped goes on where it was."""

import json
from itertools import takewhile
from pathlib import Path
from typing import Any

from multidraft.errors import AdviceError
from multidraft.io import json_lines

Record = dict[str, Any]
ADVICE = "it is no journal of a run: write to another place, or remove it"


class Journal:
    """`records` holds what the file at `path` does, which begins with the `settings` that the results depend on.

    A last line that a kill has torn is cut off, and so is what was marked as interrupted. Raises AdviceError for a file
    of a run with other settings, and for one that is no journal.
    """

    def __init__(self, path: Path, settings: Record):
        self.path = path
        self.settings = settings = json.loads(json.dumps(settings))
        lines, size = read(path, settings)
        if lines and lines[0] != settings:
            raise AdviceError(f"{str(path)!r} {difference(lines[0], settings)}; write to another place, or remove it")
        self.records = lines[1:]
        self._writer = json_lines.Writer(path, size)
        if not lines:
            self._writer.write(settings)

    def append(self, record: Record) -> None:
        """Write a result, and keep it."""
        self._writer.write(record)
        self.records.append(record)


def read(path: Path, settings: Record) -> tuple[list[Record], int]:
    """The records of a journal, if there is one, up to what a stop left unfinished, and the bytes that they take."""
    if not path.is_file():
        return [], 0
    texts, torn = json_lines.whole(path, "the journal", ADVICE)
    lines = [json_lines.parse(text, f"{path} line {number}", ADVICE) for number, text in enumerate(texts, 1)]
    begun = lines or json_lines.line(settings).startswith(torn)  # else it is a text that nobody wants to lose
    if not begun or not all(isinstance(line, dict) for line in lines):
        raise AdviceError(f"{str(path)!r} is not JSON lines of a run; {ADVICE}")
    kept = list(takewhile(lambda line: not line.get("interrupted"), lines))
    return kept, sum(len(text.encode()) + 1 for text in texts[: len(kept)])


def difference(old: Record, new: Record) -> str:
    """Which settings of a run were others, in words."""
    names = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    return "is of a run with " + ", ".join(f"{name} {old.get(name)!r} instead of {new.get(name)!r}" for name in names)
