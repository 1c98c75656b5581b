"""JSON lines, each complete as soon as it is written, so that a kill can tear only the last one; and journals of them.

A journal has the results of a long run: one that is stopped goes on where it was.
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
MOST = 2**31  # bytes of such a file
ADVICE = "it is no journal of a run: write to another place, or remove it"
BYTES = "surrogateescape"  # a changed byte may be no UTF-8: its line alone is lost
DAMAGED = ".damaged"  # ends the name of a copy of what could not be used as it was


def parse(text: str | bytes, where: str, advice: str) -> Any:
    """A JSON value; Python's own limits, of digits and of depth, are no reason for another kind of error."""
    try:
        return json.loads(text)
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:
        reason = str(error).split(";")[0]
    raise AdviceError(f"{where} is not JSON ({reason}); {advice}")


def whole(path: Path, what: str, advice: str, errors: str = "strict") -> tuple[list[str], bytes]:
    """The lines of a file that have their end, and what there is of a last one without it; `errors` as for `decode`."""
    content = files.content(path, what, MOST)
    end = content.rfind(b"\n") + 1
    try:
        return content[:end].decode(errors=errors).split("\n")[:-1], content[end:]
    except UnicodeDecodeError as error:
        raise AdviceError(f"{what} {path} is not UTF-8 text ({error.reason}); {advice}") from None


def line(value: Any) -> bytes:
    """A value as a line; half a character, which UTF-8 does not know, is escaped as JSON does it."""
    return (json.dumps(value, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def sealed(record: Record, number: int) -> Record:
    """A record with the checksum of its content and of the number of its line."""
    content = f"{number} {json.dumps(record, ensure_ascii=False)}"
    return record | {"check": crc32(content.encode(errors="surrogatepass"))}


def bare(record: Record) -> Record:
    """A record without its checksum."""
    return {name: value for name, value in record.items() if name != "check"}


class Writer:
    """A file that grows line by line, after its first `size` bytes; the rest of what it held is cut off."""

    def __init__(self, path: Path, size: int = 0):
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = path.open("ab", buffering=0)
            finalize(self, self.file.close)  # when nobody can write to it any more
            if files.is_regular(path):
                os.truncate(path, size)
        except OSError as error:
            raise files.cannot_write(path, error) from None

    def write(self, value: Any) -> None:
        """One line, at once: without a buffer, of which something could be left when the disk is full."""
        rest = memoryview(line(value))
        try:
            while rest:
                rest = rest[self.file.write(rest) :]
        except OSError as error:
            raise files.cannot_write(self.path, error) from None


class Journal:
    """`records` holds what the file at `path` does, which begins with the `settings` that the results depend on.

    What a kill has torn or was marked as interrupted is cut off. From the first line on that is not what was written
    there, by its checksum, results are made again, and the file as it was is kept beside it. One process at a time has
    a journal. Raises AdviceError where another one has it and is not to be waited for, for a file of a run with other
    settings, and for one that is no journal.
    """

    def __init__(self, path: Path, settings: Record, wait: bool = False):
        self.path = path
        self.settings = settings = json.loads(json.dumps(settings))
        self._lock = files.held(path, wait) if files.is_regular(path) else None
        lines, size = read(path, settings)
        if lines and lines[0] != settings:
            old = lines[0]
            others = [name for name in {**old, **settings} if old.get(name) != settings.get(name)]
            said = ", ".join(f"{name} {old.get(name)!r} instead of {settings.get(name)!r}" for name in others)
            raise AdviceError(f"{str(path)!r} is of a run with {said}; write to another place, or remove it")
        self.records = lines[1:]
        self._writer = Writer(path, size)
        if not lines:
            self._writer.write(sealed(settings, 1))

    def append(self, record: Record) -> None:
        """Write a result, and keep it."""
        self._writer.write(sealed(record, len(self.records) + 2))
        self.records.append(record)

    def keep(self, count: int) -> None:
        """Keep the first so many results; the file as it was is kept beside it."""
        if count < len(self.records):
            keep_damaged(self.path, count + 2)
            lines = self.path.read_bytes().split(b"\n")[: count + 1]
            self._writer = Writer(self.path, sum(len(line) + 1 for line in lines))
            del self.records[count:]


def read(path: Path, settings: Record) -> tuple[list[Record], int]:
    """The records of a journal, if there is one, up to what cannot be used, and the bytes that they take."""
    if not path.is_file():
        return [], 0
    texts, torn = whole(path, "the journal", ADVICE, BYTES)
    head = first(path, texts)
    if not isinstance(head, dict) or not (texts or line(sealed(settings, 1)).startswith(torn)):
        raise AdviceError(f"{str(path)!r} is not JSON lines of a run; {ADVICE}")
    lines = [head, *sound(texts)] if texts else []
    if len(lines) < len(texts):
        keep_damaged(path, len(lines) + 1)
    kept = list(takewhile(lambda record: not record.get("interrupted"), lines))
    return kept, sum(len(text.encode(errors=BYTES)) + 1 for text in texts[: len(kept)])


def first(path: Path, texts: list[str]) -> Any:
    """What the first line says, without its checksum; nothing where there is none."""
    head = parse(texts[0], f"{path} line 1", ADVICE) if texts else {}
    return bare(head) if isinstance(head, dict) else head


def sound(texts: list[str]) -> list[Record]:
    """The records after the first line, up to the first that is not what was written there.

    Those of journals without checksums, which older versions wrote, are taken as they are.
    """
    checked, records = bool(texts) and '"check": ' in texts[0], list[Record]()
    for number, text in enumerate(texts[1:], 2):
        try:
            record = parse(text, "", "")
        except AdviceError:
            break
        if not isinstance(record, dict) or (checked and sealed(bare(record), number) != record):
            break
        records.append(bare(record) if checked else record)
    return records


def keep_damaged(path: Path, number: int) -> None:
    """Keep a copy of a journal whose line of this number cannot be used, and say so."""
    copy = path.with_name(path.name + DAMAGED)
    files.write(copy, path.read_bytes())
    logging.getLogger("multidraft").warning(
        "%s line %d was changed after it was written, or two runs wrote there: going on from the line before; "
        "the file as it was is %s", path, number, copy
    )  # fmt: skip
