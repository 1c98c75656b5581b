"""Tensors of files that others wrote: names, dtypes and shapes are read first, numbers only on demand."""

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from multidraft.errors import AdviceError

DTYPE_NAMES = {  # in headers of safetensors
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
FLOATS, INTEGERS = {"F64", "F32", "F16", "BF16"}, {"I64", "I32", "I16", "I8", "U8"}


@dataclass(frozen=True)
class Stored:
    """A tensor of a file: dtype and shape from its header; `read` loads its numbers, memory-mapped if possible."""

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Tensor]

    def fault(self, dtypes: set[str], shape: tuple[int | None, ...]) -> str | None:
        """How it differs from what is expected, or None; a size that is None may be anything."""
        if self.dtype not in dtypes:
            return f"holds numbers of dtype {self.dtype} and should hold {' or '.join(sorted(dtypes))}"
        sizes = zip(self.shape, shape, strict=False)
        if len(self.shape) == len(shape) and all(expected in (None, size) for size, expected in sizes):
            return None
        expected = ", ".join("any" if size is None else str(size) for size in shape)
        return f"is {self.shape} and should be ({expected}{',' * (len(shape) == 1)})"


def stored_tensors(path: Path, what: str, advice: str) -> dict[str, Stored]:
    """The tensors of a safetensors file, or of a PyTorch file by its name; raises if it is neither."""
    try:
        return of_pytorch(path) if path.suffix in (".bin", ".pt") else of_safetensors(path)
    except Exception as error:  # a broken file can raise any kind of error
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise AdviceError(f"cannot read {what} {str(path)!r} ({reason}); {advice}") from None


def of_safetensors(path: Path) -> dict[str, Stored]:
    """The tensors of a header; safetensors itself checks it against the size of the file."""
    file = safe_open(path, framework="pt")
    parts = {name: file.get_slice(name) for name in file.keys()}  # `file` is no dictionary
    return {name: of_part(file, name, part) for name, part in parts.items()}


def of_part(file: Any, name: str, part: Any) -> Stored:
    """One tensor of an open file."""
    return Stored(part.get_dtype(), tuple(part.get_shape()), lambda: file.get_tensor(name))


def of_pytorch(path: Path) -> dict[str, Stored]:
    """Weights that PyTorch has pickled; only tensors are loaded, no other objects."""
    tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    for name, value in tensors.items():
        if not isinstance(name, str) or not isinstance(value, Tensor) or value.layout != torch.strided:
            raise ValueError(f"{name!r} is no tensor")
    return {name: of_tensor(value) for name, value in tensors.items()}


def of_tensor(value: Tensor) -> Stored:
    """A tensor that is in memory already."""
    return Stored(DTYPE_NAMES.get(value.dtype, str(value.dtype)), tuple(value.shape), lambda: value)
