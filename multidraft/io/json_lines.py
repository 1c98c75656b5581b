"""JSON lines: one value a line, each complete as soon as it is written, so that a kill can tear only the last one."""

import json
import os
from pathlib import Path
from typing import Any
from weakref import finalize
from zlib import crc32

from multidraft.errors import AdviceError
from multidraft.io import files
from multidraft.io.files import cannot_write, is_regular

MOST = 2**31  # bytes of such a file


def parse(text: str, where: str, advice: str) -> Any:
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


def sealed(record: dict[str, Any], number: int) -> dict[str, Any]:
    """A record with the checksum of its content and of the number of its line."""
    return record | {
        "check": crc32(f"{number} {json.dumps(record, ensure_ascii=False)}".encode(errors="surrogatepass"))
    }


def unsealed(record: dict[str, Any], number: int) -> dict[str, Any] | None:
    """A record without its checksum; None where it is not what was written in this line."""
    content = {name: value for name, value in record.items() if name != "check"}
    return content if sealed(content, number)["check"] == record.get("check") else None


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
