"""JSON lines: one value a line, each complete as soon as it is written, so that a kill can tear only the last one."""

import json
import os
from pathlib import Path
from typing import Any
from weakref import finalize

from multidraft.errors import AdviceError
from multidraft.io.files import cannot_write, is_regular


def parse(text: str, where: str, advice: str) -> Any:
    """A JSON value; Python's own limits, of digits and of depth, are no reason for another kind of error."""
    try:
        return json.loads(text)
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:
        reason = str(error).split(";")[0]
    raise AdviceError(f"{where} is not JSON ({reason}); {advice}")


def whole(path: Path, what: str, advice: str) -> tuple[list[str], bytes]:
    """The lines of a file that have their end, and what there is of a last one without it."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise AdviceError(f"cannot read {what} {path} ({error.strerror}); check the path") from None
    end = content.rfind(b"\n") + 1
    try:
        return content[:end].decode().split("\n")[:-1], content[end:]
    except UnicodeDecodeError as error:
        raise AdviceError(f"{what} {path} is not UTF-8 text ({error.reason}); {advice}") from None


def line(value: Any) -> bytes:
    """A value as a line; half a character, which UTF-8 does not know, is escaped as JSON does it."""
    return (json.dumps(value, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


class Writer:
    """A file that grows line by line, after its first `size` bytes; the rest of what it held is cut off."""

    def __init__(self, path: Path, size: int = 0):
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = path.open("ab", buffering=0)
            finalize(self, self.file.close)  # when nobody can write to it any more
            if is_regular(path):
                os.truncate(path, size)
        except OSError as error:
            raise cannot_write(path, error) from None

    def write(self, value: Any) -> None:
        """One line, at once: without a buffer, of which something could be left when the disk is full."""
        rest = memoryview(line(value))
        try:
            while rest:
                rest = rest[self.file.write(rest) :]
        except OSError as error:
            raise cannot_write(self.path, error) from None
