"""Tensors of files that others wrote: names, dtypes and shapes first, numbers only where they are asked for."""

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from multidraft.errors import AdviceError

NAMES = {  # of dtypes, in headers
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
FLOATS, WHOLES = {"F64", "F32", "F16", "BF16"}, {"I64", "I32", "I16", "I8", "U8"}


@dataclass(frozen=True)
class Stored:
    """A tensor of a file: what the header says of it; `read` gives its numbers, which stay in the file if they can."""

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Tensor]

    def fault(self, dtypes: set[str], shape: tuple[int | None, ...]) -> str | None:
        """How it is other than it should be, where sizes that are None may be anything."""
        if self.dtype not in dtypes:
            return f"holds numbers of dtype {self.dtype} and should hold {' or '.join(sorted(dtypes))}"
        pairs = zip(self.shape, shape, strict=False)
        if len(self.shape) == len(shape) and all(wanted in (None, size) for size, wanted in pairs):
            return None
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        return f"is {self.shape} and should be ({wanted}{',' * (len(shape) == 1)})"


def stored(path: Path, what: str, advice: str) -> dict[str, Stored]:
    """The tensors of a file of safetensors, or of PyTorch's where its name ends in .bin; raises where it is none."""
    try:
        return of_pytorch(path) if path.suffix == ".bin" else of_safetensors(path)
    except Exception as error:  # files can be broken in more ways than there are kinds of errors
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise AdviceError(f"cannot read {what} {str(path)!r} ({reason}); {advice}") from None


def of_safetensors(path: Path) -> dict[str, Stored]:
    """What the header says; safetensors itself holds it against the size of the file."""
    file = safe_open(path, framework="pt")
    parts = {name: file.get_slice(name) for name in file.keys()}  # it is no dictionary
    return {name: of_part(file, name, part) for name, part in parts.items()}


def of_part(file: Any, name: str, part: Any) -> Stored:
    """One tensor of an open file."""
    return Stored(part.get_dtype(), tuple(part.get_shape()), lambda: file.get_tensor(name))


def of_pytorch(path: Path) -> dict[str, Stored]:
    """Weights that PyTorch has pickled; only tensors come out of it, whatever else it asks for."""
    found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor) or value.layout != torch.strided:
            raise ValueError(f"{name!r} is no tensor")
    return {name: of_tensor(value) for name, value in found.items()}


def of_tensor(value: Tensor) -> Stored:
    """One that is there already."""
    return Stored(NAMES.get(value.dtype, str(value.dtype)), tuple(value.shape), lambda: value)
