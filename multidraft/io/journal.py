"""JSON lines that are written at once, so that a kill can tear only the last one; and journals of JSON lines.

A journal holds the results of a long run. A run that was stopped resumes from its journal.
"""

import json
import os
from itertools import takewhile
from pathlib import Path
from typing import Any
from weakref import finalize

from multidraft.errors import AdviceError
from multidraft.io import files

Record = dict[str, Any]
MAX_JOURNAL_BYTES = 2**31
ADVICE = "write to another place, or remove this line and those after it"


def parse(text: str | bytes, where: str, advice: str) -> Any:
    """A JSON value; raises AdviceError, also where Python's limits of digits or depth are exceeded."""
    try:
        return json.loads(text)
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:
        reason = str(error).split(";")[0]
    raise AdviceError(f"{where} is not JSON ({reason}); {advice}")


def read_lines(path: Path, what: str) -> tuple[list[bytes], bytes]:
    """The complete lines of a file, and the bytes after the last line break."""
    *lines, torn = files.content(path, what, MAX_JOURNAL_BYTES).split(b"\n")
    return lines, torn


def read_records(lines: list[bytes], path: Path, advice: str = ADVICE) -> list[Record]:
    """The JSON objects of complete lines; raises AdviceError at other lines."""
    records = []
    for number, line in enumerate(lines, 1):
        record = parse(line, f"{path} line {number}", advice)
        if not isinstance(record, dict):
            raise AdviceError(f"{path} line {number} is no JSON object; {advice}")
        records.append(record)
    return records


def encode(value: Any) -> bytes:
    """A value as a line of JSON; half a surrogate pair, which UTF-8 cannot encode, is escaped as in JSON."""
    return (json.dumps(value, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


class Writer:
    """A file that grows line by line; it is first cut to its first `size` bytes."""

    def __init__(self, path: Path, size: int = 0):
        self.path, self.is_regular = path, files.is_regular(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = path.open("ab", buffering=0)
            finalize(self, self.file.close)  # when this object is collected
            if self.is_regular:
                os.truncate(path, size)
        except OSError as error:
            raise files.cannot_write(path, error) from None

    def write(self, value: Any, sync: bool = False) -> None:
        """Write one line, without a buffer, which would keep a part of it when the disk is full.

        With `sync`, wait until it is on the disk, where it survives a power cut too.
        """
        unwritten = memoryview(encode(value))
        try:
            while unwritten:
                unwritten = unwritten[self.file.write(unwritten) :]
            if sync and self.is_regular:
                os.fsync(self.file.fileno())
        except OSError as error:
            raise files.cannot_write(self.path, error) from None


class Journal:
    """The results of a run in a file at `path`, which begins with the `settings` that they depend on.

    A torn last line, and records marked as interrupted, are cut off. Only one process may open a journal at a time.
    Raises AdviceError if another process has it (unless `wait`), if its settings differ, or if another line than the
    last cannot be read.
    """

    def __init__(self, path: Path, settings: Record, wait: bool = False):
        self.path = path
        self.settings = settings = json.loads(json.dumps(settings))
        self._lock = files.lock(path, wait) if files.is_regular(path) else None
        records, size = read(path, settings)
        if records and records[0] != settings:
            old_settings = records[0]
            differing = [name for name in {**old_settings, **settings} if old_settings.get(name) != settings.get(name)]
            pairs = [(name, old_settings.get(name), settings.get(name)) for name in differing]
            differences = ", ".join(f"{name} {old!r} instead of {new!r}" for name, old, new in pairs)
            raise AdviceError(f"{str(path)!r} is of a run with {differences}; write to another place, or remove it")
        self.records = records[1:]
        self._writer = Writer(path, size)
        if not records:
            self._writer.write(settings, sync=True)

    def append(self, record: Record) -> None:
        """Write a result to the file, and add it to `records`."""
        self._writer.write(record, sync=True)
        self.records.append(record)

    def keep(self, count: int) -> None:
        """Keep the first `count` results."""
        if count < len(self.records):
            lines, _ = read_lines(self.path, "the journal")
            self._writer = Writer(self.path, size_of(lines[: count + 1]))
            del self.records[count:]


def read(path: Path, settings: Record) -> tuple[list[Record], int]:
    """The records of a journal up to an interrupted one, and their bytes; none if there is no file."""
    if not path.is_file():
        return [], 0
    lines, torn = read_lines(path, "the journal")
    if not lines and not encode(settings).startswith(torn):
        raise AdviceError(f"{str(path)!r} is no journal of a run; write to another place, or remove it")
    kept = list(takewhile(lambda record: not record.get("interrupted"), read_records(lines, path)))
    return kept, size_of(lines[: len(kept)])


def size_of(lines: list[bytes]) -> int:
    """The bytes that lines take in a file."""
    return sum(len(line) + 1 for line in lines)
