"""A Llama or Qwen of a GGUF file as a folder that transformers reads: dequantised once, then kept.

A draft model with a part of its target's vocabulary has no tokenizer, but a list: `multidraft.target_ids` in its file,
`target_ids` in its configuration.
"""

import hashlib
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from multidraft.errors import AdviceError, optional
from multidraft.io.files import NEW

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Weights = dict[str, Tensor]

ONLY = "which only llama.cpp reads; decode with the file itself"
STALE = 3600  # seconds; the work takes some ten
FAMILIES = ("llama", "qwen2", "qwen3")
SETTINGS = {  # what a file says of its family, and what transformers calls it
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
TENSOR = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")
NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    **{f"attn_{name}": f"self_attn.{name}_proj" for name in "qkv"},
    **{f"attn_{name}_norm": f"self_attn.{name}_norm" for name in "qk"},
    "attn_output": "self_attn.o_proj",
    **{f"ffn_{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}


def folder_of(path: Path, cache: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    """The folder below `cache` with model and tokenizer of a GGUF file; made now, in seconds, if it is not there.

    Raises AdviceError where the file is of another family than Llama, Qwen2 and Qwen3, or where nothing can be kept.
    """
    folder = cache / "models" / f"{path.stem}-{digest(path)[:16]}-{str(dtype).removeprefix('torch.')}"
    if folder.exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        clear(folder.parent)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=NEW) as new:
            convert(path, Path(new) / "whole", dtype)
            (Path(new) / "whole").rename(folder)
    except (OSError, SafetensorError) as error:
        if not folder.exists():  # else another process has been quicker
            reason = getattr(error, "strerror", None) or error
            raise AdviceError(f"cannot keep a model in {str(folder.parent)!r} ({reason}); make room there") from None
    return folder


def clear(folder: Path) -> None:
    """Remove what a kill has left half written; what is younger may be another process's work."""
    for left in folder.glob(f"{NEW}*"):
        if time.time() - left.stat().st_mtime > STALE:
            shutil.rmtree(left, ignore_errors=True)


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise AdviceError(f"cannot read the model {str(path)!r} ({error.strerror}); check the path") from None


def convert(path: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write what a GGUF file holds as `save_pretrained` would; the tokenizer is what transformers reads."""
    from transformers import AutoTokenizer

    config, weights = read(path, dtype)
    config.save_pretrained(folder)
    if not hasattr(config, "target_ids"):
        if config.eos_token_id is None:
            raise AdviceError(f"{str(path)!r} has no tokenizer; get a file that was converted with its own")
        AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name).save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def read(path: Path, dtype: torch.dtype) -> tuple["PretrainedConfig", Weights]:
    """Configuration and weights of a GGUF file, named as transformers does; raises AdviceError where that cannot be."""
    from transformers import AutoConfig

    package: Any = optional("gguf", "the package gguf", "gguf")
    try:
        reader = package.GGUFReader(path)
    except (ValueError, IndexError):
        raise AdviceError(f"{str(path)!r} is no whole GGUF file; get it again") from None
    said = {name: field.contents() for name, field in reader.fields.items() if len(field.data) == 1}
    family = str(said["general.architecture"])
    scaled = said.get(f"{family}.rope.scaling.type", "none") != "none"
    if family not in FAMILIES or scaled:
        what = "with scaled positions" if scaled else f"of the family {family!r}"
        raise AdviceError(f"{path.name} is a model {what}, {ONLY}, or give its folder of safetensors")
    weights = {name_of(tensor.name): number(tensor, dtype) for tensor in reader.tensors}
    settings = {ours: said[name] for key, ours in SETTINGS.items() if (name := f"{family}.{key}") in said}
    ends = {f"{end}_token_id": said.get(f"tokenizer.ggml.{end}_token_id") for end in ("bos", "eos")}
    tied = "lm_head.weight" not in weights
    vocabulary = len(weights["model.embed_tokens.weight"])
    config = AutoConfig.for_model(
        family, **settings, **ends, vocab_size=vocabulary, tie_word_embeddings=tied, dtype=dtype
    )
    if family == "llama":
        in_halves(weights, config)
    if ids := reader.get_field("multidraft.target_ids"):
        config.target_ids = ids.contents()
    config.architectures = [f"{family.capitalize()}ForCausalLM"]
    return config, weights


def name_of(tensor: str) -> str:
    """What transformers calls a tensor.

    >>> name_of("blk.3.attn_q.weight"), name_of("output.weight")
    ('model.layers.3.self_attn.q_proj.weight', 'lm_head.weight')
    """
    found = TENSOR.fullmatch(tensor)
    if tensor == "output.weight":
        return "lm_head.weight"
    if not found or found[2] not in NAMES:
        raise AdviceError(f"a GGUF file has a tensor {tensor!r}, {ONLY}")
    layer = f"layers.{found[1]}." if found[1] else ""
    return f"model.{layer}{NAMES[found[2]]}.{found[3]}"


def number(tensor: Any, dtype: torch.dtype) -> Float[Tensor, "..."]:
    """The numbers of a tensor of any quantisation."""
    quants: Any = optional("gguf.quants", "the package gguf", "gguf")
    return torch.from_numpy(quants.dequantize(tensor.data, tensor.tensor_type).copy()).to(dtype)


def in_halves(weights: Weights, config: "PretrainedConfig") -> None:
    """Put queries and keys of a Llama in order: a file has the two halves that turn together side by side."""
    for name, weight in weights.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            pairs = weight.reshape(heads, -1, 2, weight.shape[1])
            weights[name] = pairs.transpose(1, 2).reshape(weight.shape).contiguous()
