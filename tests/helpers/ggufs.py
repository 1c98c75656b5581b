"""GGUF files made by the converter of `examples/`, of tiny random models and of the embedded pair."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tiny import tiny_model

pytest.importorskip("llama_cpp", reason='llama-cpp-python is not installed: pip install "multidraft[gguf]"')
to_gguf: Any = pytest.importorskip("to_gguf", reason='gguf is not installed: pip install "multidraft[gguf]"')


FOLDER = TemporaryDirectory(prefix="gguf-")  # as long as this process lives


@cache
def tiny_file(name: str, **changes: int) -> Path:
    """A tiny model in float32, without a tokenizer."""
    path = Path(FOLDER.name) / f"{name} {changes}.gguf"
    to_gguf.write(tiny_model(name, **changes), path)
    return path


@cache
def pair_files(kind: str = "f32") -> tuple[Path, Path]:
    """The embedded target and draft."""
    from multidraft.zoo import load_pair

    *models, tokenizer = load_pair()
    paths = tuple(Path(FOLDER.name) / f"{role}-{kind}.gguf" for role in ("target", "draft"))
    for model, path in zip(models, paths, strict=True):
        to_gguf.write(model, path, kind, tokenizer)
    return paths[0], paths[1]
