"""A GGUF file with its weights in another type, made once and kept: not every type is fast in every library."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from multidraft.errors import optional
from multidraft.models.gguf import header
from multidraft.models.gguf.keeping import cached_model

FILE_TYPES = {"Q8_0": 7, "Q4_0": 2, "BF16": 32, "F16": 1}  # llama.cpp's numbers for files of these types
OWN_FIELDS, ARCHITECTURE, FILE_TYPE = "GGUF.", "general.architecture", "general.file_type"  # written anew


def requantised_model(path: Path, cache: Path, kind: str) -> Path:
    """The file below `cache` that holds the model of `path` with weights of this type; made now if it is not there.

    Raises AdviceError where the package gguf is missing, or nothing can be kept.
    """
    return cached_model(path, cache, f"{kind}.gguf", lambda new_path: write(path, new_path, kind))


def write(path: Path, new_path: Path, kind: str) -> None:
    """Write the model of a file with weights of another type; vectors and metadata stay as they are."""
    package: Any = optional("gguf", "the package gguf", "gguf")
    header.check(path)
    reader = package.GGUFReader(path)
    writer = package.GGUFWriter(new_path, reader.fields[ARCHITECTURE].contents())
    for name, value, field_type in metadata(package, reader):
        if isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, FILE_TYPES[kind] if name == FILE_TYPE else value, field_type)
    for tensor in reader.tensors:
        add_tensor(package, writer, tensor, package.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def metadata(package: Any, reader: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, value and type of what a file says, but for what its writer says by itself."""
    for name, field in reader.fields.items():
        if not name.startswith(OWN_FIELDS) and name != ARCHITECTURE:
            yield name, field.contents(), field.types[0]


def add_tensor(package: Any, writer: Any, tensor: Any, kind: Any) -> None:
    """Add a tensor: a matrix in the new type, a vector in float32."""
    numbers = package.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    if numbers.ndim < 2 or tensor.tensor_type == package.GGMLQuantizationType.F32:
        writer.add_tensor(tensor.name, numbers)
    else:
        writer.add_tensor(tensor.name, package.quants.quantize(numbers, kind), raw_dtype=kind)
