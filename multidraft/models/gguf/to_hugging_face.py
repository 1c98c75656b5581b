"""A Llama or Qwen of a GGUF file as a folder that transformers reads: dequantised once, then kept.

A draft model with a part of its target's vocabulary has no tokenizer, but a list: `multidraft.target_ids` in its file,
`target_ids` in its configuration.
"""

import hashlib
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from multidraft.errors import AdviceError, optional
from multidraft.io.files import NEW

if TYPE_CHECKING:
    from transformers import PretrainedConfig

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


def read(path: Path, dtype: torch.dtype) -> tuple["PretrainedConfig", dict[str, Tensor]]:
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
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    settings = {ours: said[name] for key, ours in SETTINGS.items() if (name := f"{family}.{key}") in said}
    settings |= {f"{end}_token_id": said.get(f"tokenizer.ggml.{end}_token_id") for end in ("bos", "eos")}
    settings |= {"vocab_size": len(tensors["token_embd.weight"].data), "dtype": dtype}
    config = AutoConfig.for_model(family, **settings, tie_word_embeddings="output.weight" not in tensors)
    if ids := reader.get_field("multidraft.target_ids"):
        config.target_ids = ids.contents()
    config.architectures = [f"{family.capitalize()}ForCausalLM"]
    return config, weights(tensors, config, dtype)


def weights(tensors: dict[str, Any], config: "PretrainedConfig", dtype: torch.dtype) -> dict[str, Tensor]:
    """The numbers of tensors of any quantisation, by the names of transformers."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
    from gguf.quants import dequantize
    from transformers import AutoModelForCausalLM

    family = next(key for key, name in MODEL_ARCH_NAMES.items() if name == config.model_type)
    names: Any = get_tensor_name_map(family, config.num_hidden_layers)
    with torch.device("meta"):
        ours = {
            names.get_name(name, (".weight", ".bias")): name
            for name in AutoModelForCausalLM.from_config(config).state_dict()
        }
    if config.tie_word_embeddings:
        del ours["output.weight"]
    for name in tensors.keys() ^ ours.keys():
        raise AdviceError(f"a GGUF file {'has' if name in tensors else 'lacks'} a tensor {name!r}, {ONLY}")
    found = {}
    for its, name in ours.items():
        weight = torch.from_numpy(dequantize(tensors[its].data, tensors[its].tensor_type).copy())
        if config.model_type == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            weight = in_halves(weight, heads)
        found[name] = weight.to(dtype)
    return found


def in_halves(weight: Tensor, heads: int) -> Tensor:
    """Queries or keys of a Llama in order: a file has the two halves that turn together side by side."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(weight.shape)
