"""Write a Hugging Face model of the Llama or Qwen families, with its tokenizer, as a GGUF file.

    python examples/to_gguf.py FOLDER model.gguf [--type f16|q8_0|f32|bf16] [--pre gpt-2]
    python examples/to_gguf.py embedded target.gguf draft.gguf

llama.cpp's own `convert_hf_to_gguf.py` knows every family; this one is for what is small enough to read. The
tokenizer must be a byte-level BPE, and `--pre` names its way of cutting text into words as llama.cpp calls it.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from multidraft.errors import AdviceError, optional
from multidraft.io import files

try:
    gguf: Any = optional("gguf", "the package gguf", "gguf")
except AdviceError as error:
    sys.exit(f"to_gguf: {error} (or pip install gguf alone)")

FAMILIES = {"llama": gguf.MODEL_ARCH.LLAMA, "mistral": gguf.MODEL_ARCH.LLAMA}
FAMILIES |= {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}
NORMAL, CONTROL, USER_DEFINED, UNUSED = (
    int(getattr(gguf.TokenType, name)) for name in ("NORMAL", "CONTROL", "USER_DEFINED", "UNUSED")
)


def write(model: PreTrainedModel, path: Path, kind: str = "f32", tokenizer: Any = None, pre: str = "gpt-2") -> None:
    """Write a model, with matrices of this kind and everything else in float32."""
    config = model.config
    if config.model_type not in FAMILIES:
        raise AdviceError(f"{config.model_type} models are none of {', '.join(FAMILIES)}; llama.cpp converts others")
    files.check(path, "the output")
    family = FAMILIES[config.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[family])
    add_settings(writer, config)
    if ids := getattr(config, "target_ids", None):  # a draft with a part of its target's tokens needs no tokenizer
        writer.add_array("multidraft.target_ids", ids)
        tokenizer = None
    add_tokenizer(writer, config, tokenizer, pre) if tokenizer else writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(family, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = weight.float().numpy()
        if family == gguf.MODEL_ARCH.LLAMA and "q_proj" in name:
            values = interleaved(values, config.num_attention_heads)
        if family == gguf.MODEL_ARCH.LLAMA and "k_proj" in name:
            values = interleaved(values, config.num_key_value_heads)
        add(writer, names.get_name(name, try_suffixes=(".weight", ".bias")), values, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_settings(writer: Any, config: Any) -> None:
    """What llama.cpp must know of the model."""
    rope = getattr(config, "rope_parameters", None) or {"rope_theta": config.rope_theta}
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(head)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_vocab_size(config.vocab_size)
    if ids := getattr(config, "target_ids", None):  # of a draft model that has a part of the target's tokens
        writer.add_array("multidraft.target_ids", list(ids))


def add_tokenizer(writer: Any, config: Any, tokenizer: Any, pre: str) -> None:
    """The pieces of a byte-level BPE, its merges, its special tokens, and its chat template."""
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    pieces, kinds = [f"[unused {token}]" for token in range(config.vocab_size)], [UNUSED] * config.vocab_size
    for piece, token in parts["model"]["vocab"].items():
        pieces[token], kinds[token] = piece, NORMAL
    for added in parts["added_tokens"]:
        pieces[added["id"]], kinds[added["id"]] = added["content"], CONTROL if added["special"] else USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in parts["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(pieces)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)
    for name in ("bos", "eos", "pad"):
        if (token := getattr(tokenizer, f"{name}_token_id")) is not None:
            getattr(writer, f"add_{name}_token_id")(token)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order of llama.cpp's Llama, which turns neighbours where Hugging Face turns halves."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def add(writer: Any, name: str, values: np.ndarray, kind: str) -> None:
    """One weight; vectors stay in float32."""
    if values.ndim == 1 or kind == "f32":
        writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))
        return
    chosen = gguf.GGMLQuantizationType[kind.upper()]
    writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(values), chosen), raw_dtype=chosen)


def main() -> None:
    """Convert what is named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a folder, a hub name, or `embedded` for both models of the embedded pair")
    parser.add_argument("out", type=Path, nargs="+", help="the file to write; of the embedded pair target and draft")
    parser.add_argument("--type", default="f16", choices=("f32", "f16", "bf16", "q8_0"))
    parser.add_argument("--pre", default="gpt-2", help="llama.cpp's name of the pre-tokenizer")
    options = parser.parse_args()
    if options.model == "embedded":
        from multidraft.zoo import load_pair

        *models, tokenizer = load_pair()
    else:
        from multidraft.models.huggingface.loading import load_model, load_tokenizer

        models = [load_model(options.model)]
        tokenizer = None if hasattr(models[0].config, "target_ids") else load_tokenizer(options.model)
    if len(options.out) != len(models):
        parser.error(f"there are {len(models)} models; name as many files")
    for model, path in zip(models, options.out, strict=True):
        write(model, path, options.type, tokenizer, options.pre)


if __name__ == "__main__":
    try:
        main()
    except AdviceError as error:
        sys.exit(f"to_gguf: {error}")
