"""GGUF files made by the converter of `examples/`, of tiny random models and of the embedded pair."""

from copy import copy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from tiny import CONTEXT, VOCABULARY, WINDOW, tiny_model
from transformers import PreTrainedModel

pytest.importorskip("llama_cpp", reason='llama-cpp-python is not installed: pip install "multidraft[gguf]"')
to_gguf: Any = pytest.importorskip("to_gguf", reason='gguf is not installed: pip install "multidraft[gguf]"')


gguf: Any = pytest.importorskip("gguf")
WIDTH, INNER, STATE, RANK, KERNEL = 32, 64, 8, 2, 4
SIZES = dict(context_length=CONTEXT, embedding_length=WIDTH, block_count=1, vocab_size=VOCABULARY)
ENDS = {"token_embd.weight": (VOCABULARY, WIDTH), "blk.0.attn_norm.weight": (WIDTH,)}
STATEFUL: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {  # settings and weights by family
    "mamba": (
        dict(
            feed_forward_length=0,
            head_count=0,
            layer_norm_rms_eps=1e-5,
            ssm_conv_kernel=KERNEL,
            ssm_inner_size=INNER,
            ssm_state_size=STATE,
            ssm_time_step_rank=RANK,
        ),
        ENDS
        | {
            "output_norm.weight": (WIDTH,),
            "blk.0.ssm_in.weight": (2 * INNER, WIDTH),
            "blk.0.ssm_conv1d.weight": (INNER, KERNEL),
            "blk.0.ssm_conv1d.bias": (INNER,),
            "blk.0.ssm_x.weight": (RANK + 2 * STATE, INNER),
            "blk.0.ssm_dt.weight": (INNER, RANK),
            "blk.0.ssm_dt.bias": (INNER,),
            "blk.0.ssm_a": (INNER, STATE),
            "blk.0.ssm_d": (INNER,),
            "blk.0.ssm_out.weight": (WIDTH, INNER),
        },
    ),
    "lfm2": (
        dict(
            feed_forward_length=INNER,
            head_count=4,
            head_count_kv=[0],
            layer_norm_rms_eps=1e-5,
            rope_freq_base=1e4,
            shortconv_l_cache=KERNEL,
        ),
        ENDS
        | {
            "token_embd_norm.weight": (WIDTH,),
            "blk.0.ffn_norm.weight": (WIDTH,),
            "blk.0.ffn_gate.weight": (INNER, WIDTH),
            "blk.0.ffn_down.weight": (WIDTH, INNER),
            "blk.0.ffn_up.weight": (INNER, WIDTH),
            "blk.0.shortconv.conv.weight": (WIDTH, KERNEL),
            "blk.0.shortconv.in_proj.weight": (3 * WIDTH, WIDTH),
            "blk.0.shortconv.out_proj.weight": (WIDTH, WIDTH),
        },
    ),
}
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
    return written(writer, path)


@cache
def stateful_file(family: str) -> Path:
    """A tiny model with layers that carry a state, of zeros."""
    path = Path(FOLDER.name) / f"{family}.gguf"
    writer = gguf.GGUFWriter(path, family)
    for add, value in (SIZES | STATEFUL[family][0]).items():
        getattr(writer, f"add_{add}")(value)
    writer.add_tokenizer_model("no_vocab")
    for name, shape in STATEFUL[family][1].items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    return written(writer, path)


def written(writer: Any, path: Path) -> Path:
    """The file, complete."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
