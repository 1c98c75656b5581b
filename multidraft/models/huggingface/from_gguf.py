"""A model of a GGUF file as a folder that transformers reads: dequantised once, then kept.

Llama and Qwen are converted here; other families by transformers' own code, where it has any.

A draft model with a part of its target's vocabulary has no tokenizer, but a list: `multidraft.target_ids` in its file,
`target_ids` in its configuration.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from safetensors.torch import save_file, save_model
from torch import Tensor

from multidraft.errors import AdviceError, optional
from multidraft.io.fields import Number, Object, Whole
from multidraft.io.fields import read as read_fields
from multidraft.models.gguf import header
from multidraft.models.gguf.choice import BY_LLAMA_CPP, CONVERTED_FAMILIES
from multidraft.models.gguf.keeping import cached_model
from multidraft.models.huggingface.loading import MAX_SIZES, check_whole, reason

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

NOTES = logging.getLogger("multidraft")
UNREADABLE_REASON = "which only llama.cpp reads; decode with the file itself"
OUTPUT = "output.weight"
LAYER_KINDS = "sliding_attention", "full_attention"  # transformers' names
LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}  # of which queries are scaled otherwise than by a head's size
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


FIELDS = Object(
    {
        "num_hidden_layers": Whole(1, MAX_SIZES["num_hidden_layers"], required=True),
        "max_position_embeddings": Whole(1, 2**40),
        "hidden_size": Whole(1, MAX_SIZES["hidden_size"], required=True),
        "intermediate_size": Whole(1, MAX_SIZES["intermediate_size"], required=True),
        "num_attention_heads": Whole(1, 2**12, required=True),
        "num_key_value_heads": Whole(1, 2**12),
        "head_dim": Whole(2, 2**16),
        "rms_norm_eps": Number(0, 1),
        "rope_theta": Number(1, 1e12),
    }
)


def folder_of(path: Path, cache: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    """The folder below `cache` with model and tokenizer of a GGUF file; made now, in seconds, if it is not there.

    Raises AdviceError where neither this nor transformers converts the file's family, or where nothing can be kept.
    """
    return cached_model(path, cache, str(dtype).removeprefix("torch."), lambda folder: convert(path, folder, dtype))


def convert(path: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write what a GGUF file holds as `save_pretrained` would; the tokenizer is what transformers reads."""
    from transformers import AutoTokenizer

    header.check(path)
    if header.family(path) not in CONVERTED_FAMILIES:
        model, tokenizer = converted_by_transformers(path, dtype)
        for part in (model.config, tokenizer):
            part.save_pretrained(folder)
        save_model(model, str(folder / "model.safetensors"), metadata={"format": "pt"})
        return
    config, weights = read(path, dtype)
    config.save_pretrained(folder)
    if not hasattr(config, "target_ids"):
        if config.eos_token_id is None:
            raise AdviceError(f"{str(path)!r} has no tokenizer; get a file that was converted with its own")
        AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name).save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def converted_by_transformers(path: Path, dtype: torch.dtype) -> tuple["PreTrainedModel", Any]:
    """Model and tokenizer of a file of another family; raises AdviceError where transformers does not read all."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    causal: Any = AutoModelForCausalLM  # whose type does not say what comes with output_loading_info
    family, metadata = header.family(path), header.header_of(path).metadata
    if len(files := header.parts(path)) > 1:
        raise AdviceError(
            f"{path.name} is one of {len(files)} parts, which transformers does not read; merge them with "
            f"llama-gguf-split --merge, or {BY_LLAMA_CPP}"
        )
    check_positions(path.name, header.text(path, f"{family}.rope.scaling.type".encode()))
    NOTES.warning("transformers' own code converts the family %s, which was not tried here with every model", family)
    try:
        place: dict[str, Any] = dict(pretrained_model_name_or_path=str(path.parent), gguf_file=path.name)
        tokenizer = AutoTokenizer.from_pretrained(**place)
        model, loading = causal.from_pretrained(**place, dtype=dtype, output_loading_info=True)
    except Exception as error:  # whatever a file may lead to
        raise AdviceError(f"transformers does not read {path.name}: {reason(error)}; {BY_LLAMA_CPP}") from None
    check_whole(path.name, loading)
    config: Any = model.config
    config.architectures = [type(model).__name__]
    if family in LAYERS_OF_27B:  # a file does not say it
        is_27b = config.num_hidden_layers == LAYERS_OF_27B[family]
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads if is_27b else config.head_dim
    if isinstance(period := metadata.get(f"{family}.attention.sliding_window_pattern".encode()), int):
        config.layer_types = [LAYER_KINDS[(layer + 1) % period == 0] for layer in range(config.num_hidden_layers)]
    return model, tokenizer


def check_positions(name: str, scaling: object) -> None:
    """Raise where positions are scaled, which nothing here reads from a file."""
    if scaling not in (None, "none"):
        raise AdviceError(f"{name} is a model with scaled positions, {UNREADABLE_REASON}, or give its safetensors")


def read(path: Path, dtype: torch.dtype) -> tuple["PretrainedConfig", dict[str, Tensor]]:
    """Configuration and weights of a GGUF file, named as transformers does; raises AdviceError where that cannot be."""
    config, tensors = config_and_tensors(path, dtype)
    return config, weights(tensors, config, dtype)


def shared_weights(path: Path, dtype: torch.dtype) -> tuple["PretrainedConfig", Tensor, Tensor]:
    """Configuration, embedding and output layer, which a draft head shares; raises AdviceError as `read` does."""
    config, tensors = config_and_tensors(path, dtype)
    embedding = numbers(tensors["token_embd.weight"]).to(dtype)
    return config, embedding, numbers(tensors[OUTPUT]).to(dtype) if OUTPUT in tensors else embedding


def config_and_tensors(path: Path, dtype: torch.dtype) -> tuple["PretrainedConfig", dict[str, Any]]:
    """The configuration of a GGUF file, and its tensors by their names there."""
    package: Any = optional("gguf", "the package gguf", "gguf")
    header.check(path)
    known = {kind.value for kind in package.GGMLQuantizationType}
    if unknown := sorted(header.types_of(path) - known):
        raise AdviceError(f"{path.name} has weights of type {unknown[0]}, which are not known here; {BY_LLAMA_CPP}")
    try:
        reader, *others = map(package.GGUFReader, header.parts(path))
    except (ValueError, IndexError, KeyError, OverflowError, TypeError):
        raise AdviceError(f"{str(path)!r} is no whole GGUF file; get it again") from None
    metadata = {name: field.contents() for name, field in reader.fields.items() if len(field.data) == 1}
    family = str(metadata.get("general.architecture"))
    check_positions(path.name, metadata.get(f"{family}.rope.scaling.type"))
    if family not in CONVERTED_FAMILIES:
        raise AdviceError(f"{path.name} is of the family {family!r}, which nothing here converts; {BY_LLAMA_CPP}")
    tensors = {tensor.name: tensor for part in (reader, *others) for tensor in part.tensors}
    settings = {ours: metadata[name] for key, ours in SETTINGS.items() if (name := f"{family}.{key}") in metadata}
    settings = read_fields(FIELDS, settings, f"the metadata of {path.name}", "get the file again")
    settings = {name: value for name, value in settings.items() if value is not None}
    settings |= {f"{end}_token_id": metadata.get(f"tokenizer.ggml.{end}_token_id") for end in ("bos", "eos")}
    if "token_embd.weight" not in tensors or settings["num_hidden_layers"] > len(tensors):
        raise AdviceError(
            f"{path.name} lacks tensors of its {settings['num_hidden_layers']} layers; get the file again"
        )
    settings |= {"vocab_size": len(tensors["token_embd.weight"].data), "dtype": dtype}
    config = transformers_config(family, settings | {"tie_word_embeddings": OUTPUT not in tensors}, path.name)
    if ids := reader.get_field("multidraft.target_ids"):
        config.target_ids = ids.contents()
    config.architectures = [f"{family.capitalize()}ForCausalLM"]
    return config, tensors


def numbers(tensor: Any) -> Float[Tensor, "*shape"]:
    """A tensor of any quantisation in float32."""
    from gguf.quants import dequantize

    return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())


def transformers_config(family: str, settings: dict[str, Any], name: str) -> "PretrainedConfig":
    """The configuration that these settings make."""
    from transformers import AutoConfig

    try:
        return AutoConfig.for_model(family, **settings)
    except Exception as error:  # transformers checks more than is checked here, and not the same in every version
        raise AdviceError(f"the metadata of {name} describes no model: {reason(error)}; get the file again") from None


def weights(tensors: dict[str, Any], config: "PretrainedConfig", dtype: torch.dtype) -> dict[str, Tensor]:
    """The numbers of tensors of any quantisation, by the names of transformers."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
    from transformers import AutoModelForCausalLM

    family = next(key for key, name in MODEL_ARCH_NAMES.items() if name == config.model_type)
    names: Any = get_tensor_name_map(family, config.num_hidden_layers)
    try:
        with torch.device("meta"):
            state_dict = AutoModelForCausalLM.from_config(config).state_dict()
    except Exception as error:  # whatever a configuration that makes no sense may lead to
        raise AdviceError(f"the GGUF file describes no model: {reason(error)}; get it again") from None
    ours = {names.get_name(name, (".weight", ".bias")): name for name in state_dict}
    if config.tie_word_embeddings:
        del ours[OUTPUT]
    for name in tensors.keys() ^ ours.keys():
        raise AdviceError(f"a GGUF file {'has' if name in tensors else 'lacks'} a tensor {name!r}, {UNREADABLE_REASON}")
    weights = {}
    for its, name in ours.items():
        weight = numbers(tensors[its])
        if weight.shape != state_dict[name].shape:
            shapes = f"{tuple(weight.shape)}, not {tuple(state_dict[name].shape)}"
            raise AdviceError(f"{its} of the GGUF file is {shapes}, {UNREADABLE_REASON}")
        if config.model_type == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            weight = in_halves(weight, heads)
        weights[name] = weight.to(dtype)
    return weights


def in_halves(weight: Tensor, heads: int) -> Tensor:
    """Queries or keys of a Llama in order: a file has the two halves that turn together side by side."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(weight.shape)
