"""The header of a GGUF file, read with no more memory than it needs: every count is held against what is left of it.

Neither llama.cpp nor the package gguf does so everywhere. A header is: GGUF, the version, how many tensors and how many
pieces of metadata there are; these pieces, each a name, a type and a value; then name, sizes, type and place of every
tensor. The numbers of the tensors follow, aligned.
"""

import mmap
import re
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import NamedTuple, TypeVar

from multidraft.errors import AdviceError, quote

MAGIC, VERSIONS = b"GGUF", (2, 3)
NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}  # types of metadata, as `struct` calls them
TEXT, ARRAY, INT32 = 8, 9, 5
LEAST_PIECE, LEAST_TENSOR = 8 + 4 + 1, 8 + 4 + 4 + 8  # bytes in a header
MAX_SIZES, MAX_NAME, MAX_TOKENS = 4, 2**16 - 1, 2**24  # of a tensor; bytes of a name; numbers of a list that is read
MAX_WEIGHTS = 8  # a byte; no quantisation has fewer bits than one for each
# The weights of a block and its bytes, by ggml's numbers for types
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84)}
BLOCKS |= {11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 16: (256, 66), 17: (256, 74), 18: (256, 98)}
BLOCKS |= {19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2)}
BLOCKS |= {26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17)}
PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")  # the end of a name of a model that was split into several files
ALIGNMENT, MAX_ALIGNMENT = b"general.alignment", 2**20
Result = TypeVar("Result")


class Broken(ValueError):
    """Why a header cannot be read."""


@dataclass
class Cursor:
    """A place in a file."""

    data: mmap.mmap
    place: int = 0

    @property
    def remaining(self) -> int:
        """Bytes behind it."""
        return len(self.data) - self.place

    def number(self, code: str) -> int | float:
        """The next number, of a type as `struct` calls it."""
        start = self.skip(struct.calcsize(f"<{code}"))
        return struct.unpack_from(f"<{code}", self.data, start)[0]

    def count(self, code: str, least_bytes: int, what: str) -> int:
        """How many things follow, each of so many bytes at least."""
        count = int(self.number(code))
        if count * least_bytes > self.remaining:
            raise Broken(f"{count} {what} do not fit into it")
        return count

    def skip(self, size: int) -> int:
        """Go on behind so many bytes; where they begin."""
        if size > self.remaining:
            raise Broken("it ends too early")
        self.place += size
        return self.place - size

    def text(self) -> bytes:
        """The next text."""
        size = self.count("Q", 1, "bytes of a text")
        start = self.skip(size)
        return self.data[start : start + min(size, MAX_NAME + 1)]

    def name(self, names: set[bytes]) -> bytes:
        """The next text as a name that no other thing has."""
        name = self.text()
        if len(name) > MAX_NAME or name in names:
            raise Broken(f"{quote(name[:40])} is twice there, or too long")
        names.add(name)
        return name


@dataclass(frozen=True)
class List:
    """Where a list of numbers is; `code` is their type."""

    code: str
    count: int
    place: int


Metadata = dict[bytes, int | float | bytes | List]


class Tensor(NamedTuple):
    """Where the numbers of a tensor are in its file: their type by ggml's number, and how many there are each way."""

    name: bytes
    kind: int
    sizes: tuple[int, ...]  # of a row first
    place: int


class Header(NamedTuple):
    """What a file says before its numbers: metadata, all of it but texts in lists, and its tensors."""

    metadata: Metadata
    tensors: tuple[Tensor, ...]


def check(path: Path) -> None:
    """Raise unless a GGUF file is whole, with all of its parts, as far as headers tell."""
    for part in parts(path):
        header_of(part)


def parts(path: Path) -> list[Path]:
    """The files of a model that was split into several, of which the first stands for all; raises AdviceError."""
    metadata = header_of(path).metadata
    count, number = (metadata.get(name, 0) for name in (b"split.count", b"split.no"))
    if not isinstance(count, int) or not isinstance(number, int) or count <= 1:
        return [path]
    match = PART.search(path.name)
    if match is None or (int(match[1]), int(match[2])) != (number + 1, count):
        name = f"NAME-{number + 1:05d}-of-{count:05d}.gguf"
        raise AdviceError(f"{str(path)!r} is part {number + 1} of {count} of a model; name it {name}, as it was")
    paths = [
        path.with_name(f"{path.name[: match.start()]}-{part:05d}-of-{count:05d}.gguf") for part in range(1, count + 1)
    ]
    if number:
        raise AdviceError(f"{str(path)!r} is part {number + 1} of {count} of a model; give the first, {paths[0].name}")
    if missing := [part.name for part in paths if not part.is_file()]:
        raise AdviceError(
            f"{str(path)!r} is one of {count} parts of a model, and {missing[0]} is not beside it; get it"
        )
    return paths


def types_of(path: Path) -> frozenset[int]:
    """The types of all tensors of a model, by ggml's numbers."""
    return frozenset(tensor.kind for part in parts(path) for tensor in header_of(part).tensors)


def header_of(path: Path) -> Header:
    """The header of a file; it is read over again where the file has changed."""
    try:
        stat = path.stat()
    except OSError as error:
        raise AdviceError(f"cannot read the model {str(path)!r} ({error.strerror}); check the path") from None
    return header_of_version(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(16)
def header_of_version(path: Path, _: int, __: int) -> Header:
    """The header of a file of this size and time."""
    return read(path, scan)


def whole_numbers(path: Path, name: bytes) -> list[int] | None:
    """The list of 32-bit integers that has this name in a file's metadata; None where there is none."""

    numbers = header_of(path).metadata.get(name)
    if not isinstance(numbers, List) or numbers.code != NUMBERS[INT32]:
        return None

    def unpack(cursor: Cursor) -> list[int]:
        if numbers.count > MAX_TOKENS:
            raise Broken(f"{name.decode()} has {numbers.count} numbers")
        return list(struct.unpack_from(f"<{numbers.count}{numbers.code}", cursor.data, numbers.place))

    return read(path, unpack)


def text(path: Path, name: bytes) -> str | None:
    """The text that has this name in a file's metadata; None where there is none."""
    value_of_name = header_of(path).metadata.get(name)
    return value_of_name.decode(errors="replace") if isinstance(value_of_name, bytes) else None


def family(path: Path) -> str:
    """The architecture that a file names."""
    return text(path, b"general.architecture") or "unknown"


def read(path: Path, what: Callable[[Cursor], Result]) -> Result:
    """What is made of a file, which is not read as a whole."""
    try:
        with path.open("rb") as file:
            if (begin := file.read(len(MAGIC))) != MAGIC:
                raise AdviceError(
                    f"{str(path)!r} is no GGUF file: it begins with {quote(begin)}; get the file again (a page or a "
                    "pointer may have been saved in its place), or give a folder for PyTorch"
                )
            with closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as data:
                return what(Cursor(data, len(MAGIC)))
    except OSError as error:
        raise AdviceError(f"cannot read the model {str(path)!r} ({error.strerror}); check the path") from None
    except Broken as error:
        raise AdviceError(f"the GGUF file {str(path)!r} is cut short or damaged: {error}; get the file again") from None


def scan(cursor: Cursor) -> Header:
    """All of the header but texts in lists; raises Broken where it is not as it should be."""
    version = cursor.number("I")
    if version not in VERSIONS:
        raise Broken(f"it is of version {version}, and {' and '.join(map(str, VERSIONS))} can be read")
    tensors = cursor.count("Q", LEAST_TENSOR, "tensors")
    pieces = cursor.count("Q", LEAST_PIECE, "pieces of metadata")
    names: set[bytes] = set()
    metadata = {cursor.name(names): value(cursor) for _ in range(pieces)}
    alignment = metadata.get(ALIGNMENT, 32)
    if not isinstance(alignment, int) or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise Broken(f"tensors are aligned to {quote(alignment)}")
    return Header(metadata, scan_tensors(cursor, tensors, alignment))


def value(cursor: Cursor) -> int | float | bytes | List:
    """The next value of metadata."""
    kind = cursor.number("I")
    if kind == TEXT:
        return cursor.text()
    if kind != ARRAY:
        return cursor.number(code_of(kind))
    kind = cursor.number("I")
    if kind == TEXT:
        count = cursor.count("Q", 8, "texts")
        for _ in range(count):
            cursor.skip(int(cursor.number("Q")))
        return List("s", count, cursor.place)
    code = code_of(kind)
    count = cursor.count("Q", struct.calcsize(code), "numbers")
    return List(code, count, cursor.skip(count * struct.calcsize(code)))


def code_of(kind: int | float) -> str:
    """What `struct` calls a type of numbers."""
    if kind not in NUMBERS:
        raise Broken(f"there is no type {kind} of metadata")
    return NUMBERS[int(kind)]


def scan_tensors(cursor: Cursor, count: int, alignment: int) -> tuple[Tensor, ...]:
    """Where tensors are; raises Broken where one lies outside of the file, or is larger than its rest."""
    names: set[bytes] = set()
    tensors: list[Tensor] = []
    for _ in range(count):
        name, ways = cursor.name(names), int(cursor.number("I"))
        if ways > MAX_SIZES:
            raise Broken(f"a tensor has {ways} sizes")
        sizes = tuple(int(cursor.number("Q")) for _ in range(ways))
        tensors.append(Tensor(name, int(cursor.number("I")), sizes, int(cursor.number("Q"))))
    begin = -(-cursor.place // alignment) * alignment
    for tensor in tensors:
        block, size = BLOCKS.get(tensor.kind, (MAX_WEIGHTS, 1))  # new types are invented
        needed, rest = -(-prod(tensor.sizes) // block) * size, max(len(cursor.data) - begin - tensor.place, 0)
        if tensor.place % alignment or needed > rest:
            raise Broken(f"tensor {tensor.name.decode(errors='replace')!r} data is not within the file bounds")
    return tuple(tensor._replace(place=begin + tensor.place) for tensor in tensors)
