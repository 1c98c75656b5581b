"""Results of a long run as JSON lines, written one by one: a run that is stopped goes on where it was."""

import json
import logging
from itertools import takewhile
from pathlib import Path
from typing import Any

from multidraft.errors import AdviceError
from multidraft.io import files, json_lines
from multidraft.io.lock import Held

Record = dict[str, Any]
ADVICE = "it is no journal of a run: write to another place, or remove it"
BYTES = "surrogateescape"  # a changed byte may be no UTF-8: its line alone is lost
DAMAGED = ".damaged"  # ends the name of a copy of what could not be used as it was


class Journal:
    """`records` holds what the file at `path` does, which begins with the `settings` that the results depend on.

    A last line that a kill has torn is cut off, and so is what was marked as interrupted. Every line has a checksum:
    from the first on that is not what was written in its place, results are made again, and the file as it was is
    kept beside it. One process at a time has a journal. Raises AdviceError where another one has it and is not to be
    waited for, for a file of a run with other settings, and for one that is no journal.
    """

    def __init__(self, path: Path, settings: Record, wait: bool = False):
        self.path = path
        self.settings = settings = json.loads(json.dumps(settings))
        self._held = Held(path, wait) if files.is_regular(path) else None
        lines, size = read(path, settings)
        if lines and lines[0] != settings:
            raise AdviceError(f"{str(path)!r} {difference(lines[0], settings)}; write to another place, or remove it")
        self.records = lines[1:]
        self._writer = json_lines.Writer(path, size)
        if not lines:
            self._writer.write(json_lines.sealed(settings, 1))

    def append(self, record: Record) -> None:
        """Write a result, and keep it."""
        self._writer.write(json_lines.sealed(record, len(self.records) + 2))
        self.records.append(record)

    def keep(self, count: int) -> None:
        """Keep the first so many results; the file as it was is kept beside it."""
        if count < len(self.records):
            keep_damaged(self.path, count + 2)
            lines = self.path.read_bytes().split(b"\n")[: count + 1]
            self._writer = json_lines.Writer(self.path, sum(len(line) + 1 for line in lines))
            del self.records[count:]


def read(path: Path, settings: Record) -> tuple[list[Record], int]:
    """The records of a journal, if there is one, up to what cannot be used, and the bytes that they take."""
    if not path.is_file():
        return [], 0
    texts, torn = json_lines.whole(path, "the journal", ADVICE, BYTES)
    begun = texts or json_lines.line(json_lines.sealed(settings, 1)).startswith(torn)  # else a text that matters
    if not begun or not all(isinstance(one, dict) for one in parsed(path, texts[:1])):
        raise AdviceError(f"{str(path)!r} is not JSON lines of a run; {ADVICE}")
    lines = [*parsed(path, texts[:1]), *sound(path, texts)]
    if len(lines) < len(texts):
        keep_damaged(path, len(lines) + 1)
    kept = list(takewhile(lambda line: not line.get("interrupted"), lines))
    return kept, sum(len(text.encode(errors=BYTES)) + 1 for text in texts[: len(kept)])


def parsed(path: Path, first: list[str]) -> list[Record]:
    """The first line, if there is one, without its checksum: its content is compared as it is."""
    lines = [json_lines.parse(text, f"{path} line 1", ADVICE) for text in first]
    return [{k: v for k, v in line.items() if k != "check"} if isinstance(line, dict) else line for line in lines]


def sound(path: Path, texts: list[str]) -> list[Record]:
    """The records after the first line, up to the first that is not what was written there.

    Those of journals without checksums, which older versions wrote, are taken as they are.
    """
    checked, records = '"check": ' in texts[0] if texts else True, list[Record]()
    for number, text in enumerate(texts[1:], 2):
        try:
            record = json_lines.parse(text, "", "")
        except AdviceError:
            break
        record = json_lines.unsealed(record, number) if isinstance(record, dict) and checked else record
        if not isinstance(record, dict):
            break
        records.append(record)
    return records


def keep_damaged(path: Path, number: int) -> None:
    """Keep a copy of a journal whose line of this number cannot be used, and say so."""
    copy = path.with_name(path.name + DAMAGED)
    files.write(copy, path.read_bytes())
    logging.getLogger("multidraft").warning(
        "%s line %d was changed after it was written, or two runs wrote there: going on from the line before; "
        "the file as it was is %s", path, number, copy
    )  # fmt: skip


def difference(old: Record, new: Record) -> str:
    """Which settings of a run were others, in words."""
    names = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    return "is of a run with " + ", ".join(f"{name} {old.get(name)!r} instead of {new.get(name)!r}" for name in names)
