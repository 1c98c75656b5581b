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
from tiny import CONTEXT, EAGER_ONLY, tiny_model
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
    return other_model("gemma3", **changes)


def window_file() -> Path:
    """That model as a file."""
    return other_file("gemma3")


SCALED = {"query_pre_attn_scalar": 8}  # as large as a head, which is what llama.cpp takes
OTHER_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {  # that llama.cpp alone reads: its name, and changed settings
    "gemma2": ("GEMMA2", SCALED),
    "gemma3": ("GEMMA3", SCALED),
    "gpt_oss": ("GPT_OSS", {}),
    "olmo2": ("OLMO2", {}),
    "phi3 window": ("PHI3", {"sliding_window": None}),  # llama.cpp lets all layers of it see everything
}


def other_model(name: str, **changes: int) -> PreTrainedModel:
    """A tiny model of another family."""
    return tiny_model(name, "eager" if name in EAGER_ONLY else "sdpa", **OTHER_FAMILIES[name][1] | changes)


@cache
def other_file(name: str) -> Path:
    """That model as a file."""
    path, model, family = (
        Path(FOLDER.name) / f"{name}.gguf",
        other_model(name),
        gguf.MODEL_ARCH[OTHER_FAMILIES[name][0]],
    )
    writer, config = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[family]), copy(model.config)
    if name == "gemma3":
        config.rope_parameters = config.rope_parameters["full_attention"]  # llama.cpp knows the other layers' own
        writer.add_sliding_window_pattern(2)
    to_gguf.add_settings(writer, config)
    add_other_settings(writer, config)
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(family, config.num_hidden_layers)
    for name_here, weight in model.state_dict().items():
        if name_here == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for part, values in parts_of(name_here, weight.numpy(), family.name.startswith("GEMMA")):
            to_gguf.add(writer, names.get_name(part, try_suffixes=(".weight", ".bias")), values, "f32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_other_settings(writer: Any, config: Any) -> None:
    """Windows, soft caps, experts and stretched rotations, of models that have them."""
    writer.add_sliding_window(getattr(config, "sliding_window", None) or CONTEXT)
    if cap := getattr(config, "attn_logit_softcapping", None):
        writer.add_attn_logit_softcapping(cap)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if experts := getattr(config, "num_local_experts", None):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.intermediate_size)
    if (rope := config.rope_parameters).get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def parts_of(name: str, values: Any, adds_one: bool) -> list[tuple[str, Any]]:
    """A weight as llama.cpp has it: experts' gates and values apart and turned, norms with the one that is added."""
    if name.endswith("sinks"):
        return [(f"{name}.weight", values)]
    if ".experts." in name:
        name, is_bias = name.removesuffix("_bias"), name.endswith("_bias")
        values, suffix = values if is_bias else values.swapaxes(1, 2), ".bias" if is_bias else ".weight"
        if name.endswith("gate_up_proj"):
            parts = {"gate_proj": values[:, ::2], "up_proj": values[:, 1::2]}
            return [(name.replace("gate_up_proj", part) + suffix, half) for part, half in parts.items()]
        return [(name + suffix, values)]
    return [(name, values + (adds_one and name.endswith("norm.weight")))]
