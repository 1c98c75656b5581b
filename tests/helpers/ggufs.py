"""GGUF files made by the converter of `examples/`, of tiny random models and of the embedded pair."""

import os
from copy import copy
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from reading import TOLERANCE
from tiny import WINDOW, tiny_model
from transformers import PreTrainedModel

from multidraft.errors import install_command
from multidraft.models.gguf import IK_LLAMA_CPP, LLAMA_CPP
from multidraft.models.gguf.choice import LIBRARY_VARIABLE
from multidraft.models.gguf.places import llama_cpp_path

INSTALL = install_command("gguf")
HAS_LLAMA_CPP = llama_cpp_path() is not None
IS_INSTALLED = {IK_LLAMA_CPP: find_spec("ik_llama_cpp") is not None, LLAMA_CPP: HAS_LLAMA_CPP}
INSTALLED = [name for name, is_installed in IS_INSTALLED.items() if is_installed]
if not INSTALLED:
    pytest.skip(f"no library for GGUF files is installed; run {INSTALL}", allow_module_level=True)
LIBRARY = os.environ.get(LIBRARY_VARIABLE) or INSTALLED[0]
CACHE_TYPE = {IK_LLAMA_CPP: "f16", LLAMA_CPP: "f32"}[LIBRARY]  # the most exact one
ALLOWED = {"f16": 30, "f32": 1}[CACHE_TYPE] * TOLERANCE
to_gguf: Any = pytest.importorskip("to_gguf", reason=f"gguf is not installed; run {INSTALL}")

gguf: Any = pytest.importorskip("gguf")
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


def window_model(**changes: int) -> PreTrainedModel:
    """The tiny Gemma 3, of whose two layers the first sees the nearest tokens alone."""
    return tiny_model("gemma3", query_pre_attn_scalar=8, **changes)  # as large as a head, which is what llama.cpp takes


@cache
def window_file() -> Path:
    """That model as a file."""
    path, model, family = Path(FOLDER.name) / "gemma3.gguf", window_model(), gguf.MODEL_ARCH.GEMMA3
    writer, config = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[family]), copy(model.config)
    config.rope_parameters = config.rope_parameters["full_attention"]  # llama.cpp knows the other layers' own
    to_gguf.add_settings(writer, config)
    writer.add_sliding_window(WINDOW)
    writer.add_sliding_window_pattern(2)
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(family, model.config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight":
            values = weight.numpy() + name.endswith("norm.weight")  # where Hugging Face adds one when it computes
            to_gguf.add(writer, names.get_name(name, try_suffixes=(".weight",)), values, "f32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
