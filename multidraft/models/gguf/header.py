"""A GGUF file before it is loaded: whether it is one, whether it is whole, and whether there is memory for it."""

import ctypes
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from multidraft.errors import AdviceError
from multidraft.machine import available, readable
from multidraft.models.gguf.binding import library

MAGIC = b"GGUF"
TARGET_IDS = b"multidraft.target_ids"
ARRAY, INT32 = 9, 5  # types of metadata
PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")  # of a model that was split into several files


@dataclass(frozen=True)
class Header:
    """What the beginning of a file says of it."""

    tensors: int  # bytes of all weights
    end: int  # where the last of them ends in the file
    target_ids: list[int] | None = None  # of the target's tokens, where a draft model has a part of them


class Settings(ctypes.Structure):
    """How llama.cpp reads a header: without the weights."""

    _fields_ = [("no_alloc", ctypes.c_bool), ("tensors", ctypes.c_void_p)]  # of ctypes


def check(path: Path) -> Header:
    """The header of a file; raises unless it is whole, with all its parts, and there is memory for its weights."""
    headers = [checked(part) for part in parts(path)]
    needed = sum(header.tensors for header in headers)
    free = available(torch.device("cpu"))
    if free is not None and needed > free:
        raise AdviceError(
            f"the weights of {str(path)!r} take {readable(needed)} of memory and {readable(free)} are free; "
            "use a file with fewer bits a weight, or a smaller model"
        )
    return headers[0]


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
        end = reader.gguf_get_data_offset(found) + max(ends, default=0)
        return Header(sum(sizes), end, numbers(reader, found, TARGET_IDS))
    finally:
        reader.gguf_free(found)


def numbers(reader: Any, found: int, name: bytes) -> list[int] | None:
    """A list of numbers among the metadata; None where there is none."""
    key = reader.gguf_find_key(found, name)
    if key < 0 or reader.gguf_get_kv_type(found, key) != ARRAY or reader.gguf_get_arr_type(found, key) != INT32:
        return None
    data = ctypes.cast(reader.gguf_get_arr_data(found, key), ctypes.POINTER(ctypes.c_int32))
    return data[: reader.gguf_get_arr_n(found, key)]


def functions() -> Any:
    """Those that read headers, which the binding does not declare."""
    found, pointer, number = library()._lib, ctypes.c_void_p, ctypes.c_int64
    for name, result, *arguments in (
        ("init_from_file", pointer, ctypes.c_char_p, Settings),
        ("free", None, pointer),
        ("get_n_tensors", number, pointer),
        ("get_data_offset", number, pointer),
        ("get_tensor_size", number, pointer, number),
        ("get_tensor_offset", number, pointer, number),
        ("find_key", number, pointer, ctypes.c_char_p),
        ("get_kv_type", ctypes.c_int, pointer, number),
        ("get_arr_type", ctypes.c_int, pointer, number),
        ("get_arr_n", number, pointer, number),
        ("get_arr_data", pointer, pointer, number),
    ):
        function = getattr(found, f"gguf_{name}")
        function.argtypes, function.restype = arguments, result
    return found
