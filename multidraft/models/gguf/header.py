"""A GGUF file before it is loaded: whether it is one, whether it is whole, and whether there is memory for it."""

import ctypes
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from multidraft.errors import AdviceError
from multidraft.machine.memory import available, readable
from multidraft.models.gguf.binding import library

MAGIC = b"GGUF"
PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")  # of a model that was split into several files


@dataclass(frozen=True)
class Header:
    """What the beginning of a file says of it."""

    tensors: int  # bytes of all weights
    end: int  # where the last of them ends in the file


class Settings(ctypes.Structure):
    """How llama.cpp reads a header: without the weights."""

    _fields_ = [("no_alloc", ctypes.c_bool), ("tensors", ctypes.c_void_p)]  # of ctypes


def check(path: Path) -> None:
    """Raise unless there is a whole GGUF file, with all its parts, and as much memory as its weights take."""
    needed = sum(checked(part).tensors for part in parts(path))
    free = available(torch.device("cpu"))
    if free is not None and needed > free:
        raise AdviceError(
            f"the weights of {str(path)!r} take {readable(needed)} of memory and {readable(free)} are free; "
            "use a file with fewer bits a weight, or a smaller model"
        )


def parts(path: Path) -> list[Path]:
    """The files of a model; a single one unless its name says that it is the first of several."""
    found = PART.search(path.name)
    if not found:
        return [path]
    stem, count = path.name[: found.start()], int(found[2])
    return [path.with_name(f"{stem}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]


def checked(path: Path) -> Header:
    """The header of one file; raises AdviceError where it is none, or the file ends too early."""
    try:
        with path.open("rb") as file:
            magic, size = file.read(len(MAGIC)), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise AdviceError(f"cannot read the model {str(path)!r} ({error.strerror}); check the path") from None
    if magic != MAGIC:
        raise AdviceError(f"{str(path)!r} is no GGUF file; give one whose name ends in .gguf, or a folder for PyTorch")
    header = read(path)
    if header is None or size < header.end:
        there = "its header is broken" if header is None else f"{readable(size)} of {readable(header.end)} are there"
        raise AdviceError(f"the GGUF file {str(path)!r} is cut short or damaged ({there}); get it again")
    return header


def read(path: Path) -> Header | None:
    """What llama.cpp reads of a header; None where it cannot."""
    reader = functions()
    found = reader.gguf_init_from_file(os.fsencode(path), Settings(True, None))
    if not found:
        return None
    try:
        tensors = range(reader.gguf_get_n_tensors(found))
        sizes = [reader.gguf_get_tensor_size(found, number) for number in tensors]
        starts = [reader.gguf_get_tensor_offset(found, number) for number in tensors]
        ends = [start + size for start, size in zip(starts, sizes, strict=True)]
        return Header(sum(sizes), reader.gguf_get_data_offset(found) + max(ends, default=0))
    finally:
        reader.gguf_free(found)


def functions() -> Any:
    """Those that read headers, which the binding does not declare."""
    found, number = library()._lib, ctypes.c_int64
    found.gguf_init_from_file.argtypes = [ctypes.c_char_p, Settings]
    found.gguf_init_from_file.restype = ctypes.c_void_p
    found.gguf_free.argtypes = [ctypes.c_void_p]
    for name in ("gguf_get_n_tensors", "gguf_get_data_offset"):
        getattr(found, name).argtypes, getattr(found, name).restype = [ctypes.c_void_p], number
    for name in ("gguf_get_tensor_size", "gguf_get_tensor_offset"):
        getattr(found, name).argtypes, getattr(found, name).restype = [ctypes.c_void_p, number], number
    return found
