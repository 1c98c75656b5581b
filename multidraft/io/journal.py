"""JSON lines that are written at once, so that a kill can tear only the last one; and journals of JSON lines.

A journal holds the results of a long run. A run that was stopped resumes from its journal.
"""

import json
import logging
import os
from itertools import takewhile
from pathlib import Path
from typing import Any
from weakref import finalize
from zlib import crc32

from multidraft.errors import AdviceError
from multidraft.io import files

Record = dict[str, Any]
MAX_JOURNAL_BYTES = 2**31
NO_JOURNAL = "it is no journal of a run: write to another place, or remove it"
KEEP_BYTES = "surrogateescape"  # a byte that is no UTF-8 makes only its own line unusable
DAMAGED_SUFFIX = ".damaged"  # of the copy of a journal with an unusable line


def parse(text: str | bytes, where: str, advice: str) -> Any:
    """A JSON value; raises AdviceError, also where Python's limits of digits or depth are exceeded."""
    try:
        return json.loads(text)
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:
        reason = str(error).split(";")[0]
    raise AdviceError(f"{where} is not JSON ({reason}); {advice}")


def read_lines(path: Path, what: str, advice: str, errors: str = "strict") -> tuple[list[str], bytes]:
    """The complete lines of a file, and the bytes after the last line break; `errors` as for `bytes.decode`."""
    data = files.content(path, what, MAX_JOURNAL_BYTES)
    end = data.rfind(b"\n") + 1
    try:
        return data[:end].decode(errors=errors).split("\n")[:-1], data[end:]
    except UnicodeDecodeError as error:
        raise AdviceError(f"{what} {path} is not UTF-8 text ({error.reason}); {advice}") from None


def encode(value: Any) -> bytes:
    """A value as a line of JSON; half a surrogate pair, which UTF-8 cannot encode, is escaped as in JSON."""
    return (json.dumps(value, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def with_checksum(record: Record, number: int) -> Record:
    """A record with a checksum of its content and its line number."""
    content = f"{number} {json.dumps(record, ensure_ascii=False)}"
    return record | {"check": crc32(content.encode(errors="surrogatepass"))}


def without_checksum(record: Record) -> Record:
    """A record without its checksum."""
    return {name: value for name, value in record.items() if name != "check"}


class Writer:
    """A file that grows line by line; it is first cut to its first `size` bytes."""

    def __init__(self, path: Path, size: int = 0):
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = path.open("ab", buffering=0)
            finalize(self, self.file.close)  # when this object is collected
            if files.is_regular(path):
                os.truncate(path, size)
        except OSError as error:
            raise files.cannot_write(path, error) from None

    def write(self, value: Any) -> None:
        """Write one line, without a buffer, which would keep a part of it when the disk is full."""
        unwritten = memoryview(encode(value))
        try:
            while unwritten:
                unwritten = unwritten[self.file.write(unwritten) :]
        except OSError as error:
            raise files.cannot_write(self.path, error) from None


class Journal:
    """The results of a run in a file at `path`, which begins with the `settings` that they depend on.

    A torn last line, and records marked as interrupted, are cut off. If a line's checksum is wrong, the records from
    that line on are dropped, so that they are made again, and a copy of the old file is kept beside it. Only one
    process may open a journal at a time. Raises AdviceError if another process has it (unless `wait`), if its settings
    differ, or if the file is no journal.
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
            self._writer.write(with_checksum(settings, 1))

    def append(self, record: Record) -> None:
        """Write a result to the file, and add it to `records`."""
        self._writer.write(with_checksum(record, len(self.records) + 2))
        self.records.append(record)

    def keep(self, count: int) -> None:
        """Keep the first `count` results, and a copy of the old file beside it."""
        if count < len(self.records):
            keep_damaged(self.path, count + 2)
            lines = self.path.read_bytes().split(b"\n")[: count + 1]
            self._writer = Writer(self.path, sum(len(line) + 1 for line in lines))
            del self.records[count:]


def read(path: Path, settings: Record) -> tuple[list[Record], int]:
    """The usable records at the beginning of a journal, and their bytes; none if there is no file."""
    if not path.is_file():
        return [], 0
    lines, torn = read_lines(path, "the journal", NO_JOURNAL, KEEP_BYTES)
    head = first_record(path, lines)
    if not isinstance(head, dict) or not (lines or encode(with_checksum(settings, 1)).startswith(torn)):
        raise AdviceError(f"{str(path)!r} is not JSON lines of a run; {NO_JOURNAL}")
    records = [head, *valid_records(lines)] if lines else []
    if len(records) < len(lines):
        keep_damaged(path, len(records) + 1)
    kept = list(takewhile(lambda record: not record.get("interrupted"), records))
    return kept, sum(len(line.encode(errors=KEEP_BYTES)) + 1 for line in lines[: len(kept)])


def first_record(path: Path, lines: list[str]) -> Any:
    """The value of the first line, without its checksum; an empty object if there is no line."""
    head = parse(lines[0], f"{path} line 1", NO_JOURNAL) if lines else {}
    return without_checksum(head) if isinstance(head, dict) else head


def valid_records(lines: list[str]) -> list[Record]:
    """The records after the first line, up to the first that is damaged.

    Older versions wrote journals without checksums; their records are taken unchecked.
    """
    has_checksums, records = bool(lines) and '"check": ' in lines[0], list[Record]()
    for number, line in enumerate(lines[1:], 2):
        try:
            record = parse(line, "", "")
        except AdviceError:
            break
        content = without_checksum(record) if has_checksums and isinstance(record, dict) else record
        if not isinstance(record, dict) or (has_checksums and with_checksum(content, number) != record):
            break
        records.append(content)
    return records


def keep_damaged(path: Path, number: int) -> None:
    """Keep a copy of a journal whose line `number` is damaged, and warn."""
    copy = path.with_name(path.name + DAMAGED_SUFFIX)
    files.write(copy, path.read_bytes())
    logging.getLogger("multidraft").warning(
        "%s line %d was changed after it was written, or two runs wrote there: going on from the line before; "
        "the file as it was is %s", path, number, copy
    )  # fmt: skip
