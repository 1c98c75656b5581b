"""Journals: the answers of a run as JSON lines, so that a run that was stopped goes on where it was."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from weakref import finalize

from multidraft_judge.errors import AdviceError

Record = dict[str, Any]
ADVICE = "write to another folder, or remove it"


def make_folder(folder: Path) -> None:
    """Make a folder for answers, if it is not there; raises AdviceError if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".new-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise AdviceError(f"cannot write to --out {str(folder)!r} ({error.strerror}); choose another folder") from None


def folder_of(out: str | Path | None) -> Path | None:
    """The folder for answers, which is made if it is not there."""
    if out is None:
        return None
    make_folder(Path(out))
    return Path(out)


class Journal:
    """Records in a file that begins with the `header` that they depend on; one process at a time may open it.

    A torn last line, as a kill leaves it, is cut off. Raises AdviceError if the header differs, if another line cannot
    be read, or if another process has the file.
    """

    def __init__(self, path: Path, header: Record):
        self.path, header = path, json.loads(json.dumps(header))
        try:
            self.file: IO[bytes] = path.open("a+b", buffering=0)
        except OSError as error:
            raise self.cannot_write(error) from None
        finalize(self, self.file.close)  # when this object is collected, which unlocks it, too
        self.lock()
        self.file.seek(0)
        *lines, torn = self.file.read().split(b"\n")
        records = [self.record(number, line) for number, line in enumerate(lines, 1)]
        if records and records[0] != header:
            raise AdviceError(f"{str(path)!r} is of a run with {differences(records[0], header)}; {ADVICE}")
        if not records and not encode(header).startswith(torn):
            raise AdviceError(f"{str(path)!r} is no journal of a run; {ADVICE}")
        if torn:
            self.file.truncate(self.file.tell() - len(torn))
        self.records = records[1:]
        if not records:
            self.write(header)

    def lock(self) -> None:
        """Keep other processes out, as long as this object lives; where the system cannot lock, nobody is."""
        with suppress(ImportError):
            import fcntl

            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                advice = "wait for its end, or write to another folder"
                raise AdviceError(f"{str(self.path)!r} is written by another process; {advice}") from None
            except OSError:  # on some network drives
                return

    def record(self, number: int, line: bytes) -> Record:
        """The JSON object of a line."""
        with suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict):
                return record
        raise AdviceError(f"{self.path} line {number} is no JSON object; {ADVICE}")

    def append(self, record: Record) -> None:
        """Write a record, and add it to `records`."""
        self.write(record)
        self.records.append(record)

    def write(self, record: Record) -> None:
        """Write a line, and wait until it is on the disk."""
        unwritten = memoryview(encode(record))
        try:
            while unwritten:
                unwritten = unwritten[self.file.write(unwritten) :]
            os.fsync(self.file.fileno())
        except OSError as error:
            raise self.cannot_write(error) from None

    def cannot_write(self, error: OSError) -> AdviceError:
        """The error for a file that the system does not let us write."""
        return AdviceError(f"cannot write {str(self.path)!r} ({error.strerror}); make room, or choose another folder")


def encode(record: Record) -> bytes:
    """A record as a line."""
    return (json.dumps(record) + "\n").encode()


def differences(old: Record, new: Record) -> str:
    """In words: what differs between two headers.

    >>> differences({"model": "a", "seed": 1}, {"model": "b", "seed": 1})
    "model 'a' instead of 'b'"
    """
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(f"{name} {old.get(name)!r} instead of {new.get(name)!r}" for name in names)
