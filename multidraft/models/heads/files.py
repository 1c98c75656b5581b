"""The files that heads come in, `speculators`' and those first published: `config.json` and safetensors.

Layer k is what `output_hidden_states` calls k, in all of them: 0 is the embedding, k what decoder layer k - 1 gives,
the last one normed. EAGLE's `eagle_aux_hidden_state_layer_ids` and speculators' `aux_hidden_state_layer_ids` mean that;
DFlash's own `target_layer_ids` are one less.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from multidraft.errors import AdviceError
from multidraft.models.compat import home
from multidraft.models.heads import DFLASH, EAGLE3, KINDS, MEDUSA, MODULES, Body, Head, Settings
from multidraft.models.loading import settings_in

Weights = dict[str, Tensor]
NEEDS = "give a folder with the config.json and the weights of an EAGLE-3, DFlash or Medusa head"
MARKS = {"eagle_config": EAGLE3, "dflash_config": DFLASH, "medusa_num_heads": MEDUSA}  # by which heads are known
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")  # of EAGLE
SHAPE = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
FOREIGN = ("architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "quantization_config")
DROPPED = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight")  # weights that inference does not need


def load_head(folder: Path, target: PreTrainedModel) -> Head:
    """The head of a folder in the target's dtype, in evaluation mode.

    What it has no weights of is the target's: the embedding, and the rows of its head for the tokens that it drafts.
    Raises AdviceError where the files are of no head, not whole, or of a head for another target.
    """
    config = target.config.get_text_config(decoder=True)
    settings, weights = read_settings(folder, config), read_weights(folder)
    if "d2t" in weights:
        settings = replace(settings, drafted=len(weights["d2t"]))
    with torch.device("meta"):
        head = MODULES[settings.kind](settings)
    fill(head, weights, target, str(folder))
    return head.eval()


def read_settings(folder: Path, target: PretrainedConfig) -> Settings:
    """What the configuration in a folder says, for this target; raises AdviceError where it does not fit."""
    path = folder / "config.json"
    if not path.is_file():
        raise AdviceError(f"folder {str(folder)!r} has no config.json; {NEEDS}")
    found = settings_in(path)
    settings = settings_of(kind_of(found, folder), found, target)
    size, width, last, count = target.vocab_size, target.hidden_size, max(settings.layers), target.num_hidden_layers
    for is_other, what, its in (
        (settings.layer.vocab_size != size, f"is for a target of {settings.layer.vocab_size} tokens", size),
        (settings.target_width != width, f"is for a target of width {settings.target_width}", width),
        (last > count, f"reads layer {last} of its target", count),
    ):
        if is_other:
            raise AdviceError(f"the head {what} and this one has {its}; give the target that it was trained for")
    return settings


def kind_of(found: dict[str, Any], folder: Path) -> str:
    """Which head a configuration is of; raises AdviceError where it is of none that can be read."""
    names = [found.get("model_type"), found.get("speculators_model_type"), *(found.get("architectures") or [])]
    said = ", ".join(str(name) for name in names if name)
    named = [kind for kind in KINDS if kind in said.lower()]
    marked = [kind for mark, kind in MARKS.items() if mark in found]
    if not named + marked:
        raise AdviceError(
            f"config.json in {str(folder)!r} is of no head that can be read ({said or 'no name'}); {NEEDS}"
        )
    return (named + marked)[0]


def settings_of(kind: str, found: dict[str, Any], target: PretrainedConfig) -> Settings:
    """What a configuration says, on top or in the part of its kind."""
    said = dict(found.get("eagle_config") or {}) | dict(found.get("dflash_config") or {}) | found
    own = {EAGLE3: eagle3, DFLASH: dflash, MEDUSA: medusa}[kind](said, target.num_hidden_layers)
    size, width = target.vocab_size, target.hidden_size
    if kind == MEDUSA:  # which has no decoder layers
        found = {"hidden_size": found.get("hidden_size") or width, "vocab_size": size}
    layer = layer_of({"model_type": "qwen3" if kind == DFLASH else "llama"} | found, size)
    drafted = said.get("truncated_vocab_size") or said.get("draft_vocab_size") or layer.vocab_size
    return Settings(
        kind, layer, drafted=drafted, target_width=said.get("target_hidden_size") or layer.hidden_size, **own
    )


def layer_of(found: dict[str, Any], size: int) -> PretrainedConfig:
    """The configuration of the decoder layers, which stands by itself in speculators' files, and on top in others."""
    own = dict(found.get("transformer_layer_config") or found)
    family = "qwen3" if "qwen3" in str(own.pop("model_type", "llama")) else "llama"
    own = {
        name: value for name, value in own.items() if name not in FOREIGN and (value is not None or name not in SHAPE)
    }
    if not own.get("layer_types"):
        own.pop("layer_types", None)
    return AutoConfig.for_model(family, **{"vocab_size": size} | own)


def usual_layers(count: int) -> tuple[int, int, int]:
    """The layers of a target that EAGLE-3 reads where nothing is said.

    >>> usual_layers(30)
    (2, 15, 27)
    """
    return 2, count // 2, count - 3


def eagle3(said: dict[str, Any], count: int) -> dict[str, Any]:
    """An EAGLE-3 head's own settings, for a target of so many layers."""
    layers = tuple(said.get("eagle_aux_hidden_state_layer_ids") or usual_layers(count))
    if said.get("num_aux_hidden_states") not in (None, len(layers)):
        count = said["num_aux_hidden_states"]
        raise AdviceError(f"the head reads {count} layers of its target and names {len(layers)}; get its files again")
    flags = {name: bool(said.get(name)) for name in FLAGS}
    return {"layers": layers, "logit_scale": float(said.get("logit_scale") or 1.0)} | flags


def dflash(said: dict[str, Any], count: int) -> dict[str, Any]:
    """A DFlash head's; the first files count decoder layers, so that i is state i + 1."""
    layers = said.get("aux_hidden_state_layer_ids") or [each + 1 for each in said.get("target_layer_ids") or ()]
    if not layers or said.get("mask_token_id") is None or not said.get("block_size"):
        raise AdviceError("the head's config.json lacks target_layer_ids, mask_token_id or block_size; get it again")
    return {
        "layers": tuple(layers),
        "block": said["block_size"],
        "mask_token": said["mask_token_id"],
        "from_anchor": bool(said.get("sample_from_anchor")),
        "causal_window": not said.get("sliding_window_non_causal"),
        "embedding_scale": float(said.get("input_embedding_scale") or 1.0),
    }


def medusa(said: dict[str, Any], count: int) -> dict[str, Any]:
    """Those of Medusa heads, which read the last state alone."""
    heads = said.get("medusa_num_heads") or said.get("num_heads")
    if not heads:
        raise AdviceError("the heads' config.json has no medusa_num_heads; get it again")
    depth = said.get("medusa_num_layers") or said.get("num_hidden_layers") or 1
    return {"layers": (count,), "heads": heads, "depth": depth}


def read_weights(folder: Path) -> Weights:
    """All tensors of a folder by the modules' names; raises AdviceError where there are none."""
    paths = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    found: Weights = {}
    try:
        for path in paths:
            binary = path.suffix == ".bin"
            found |= torch.load(path, map_location="cpu", weights_only=True) if binary else load_file(path)
    except Exception as error:  # files can be broken in more ways than there are kinds of errors
        raise AdviceError(f"cannot read the weights in {str(folder)!r} ({error}); get the files again") from None
    if not found:
        raise AdviceError(f"folder {str(folder)!r} has no weights; {NEEDS}")
    found = {renamed(name): value for name, value in found.items() if "rotary" not in name and name not in DROPPED}
    tokens = found.pop("token_map", None)
    return found if tokens is None else found | {"d2t": tokens.long() - torch.arange(len(tokens))}


def renamed(name: str) -> str:
    """The module's name of a weight, whichever way it is nested.

    >>> renamed("midlayer.self_attn.q_proj.weight"), renamed("medusa_heads.0.0.linear.weight")
    ('layers.0.self_attn.q_proj.weight', '0.0.linear.weight')
    """
    for prefix in ("model.", "medusa_heads.", "medusa_head."):
        name = name.removeprefix(prefix)
    return name.replace("midlayer.", "layers.0.", 1)


def fill(head: Head, weights: Weights, target: PreTrainedModel, name: str) -> None:
    """Put weights into a head without any, and the target's where there are none; raises AdviceError on misfits."""
    wanted, found = head.state_dict(), of_target(target, weights) | weights
    for key in sorted(wanted.keys() | weights.keys() - {"embed_tokens.weight"}):
        ours, theirs = wanted.get(key), found.get(key)
        if ours is None or theirs is None:
            what = f"lacks {key}" if theirs is None else f"has {key}, for which its config.json has no place"
            raise AdviceError(f"the head {name!r} {what}; get its files again")
        if ours.shape != theirs.shape:
            raise AdviceError(
                f"{key} of the head {name!r} is {tuple(theirs.shape)} and should be {tuple(ours.shape)}; its files "
                "belong to another head or target"
            )
    dtype, device = target.dtype, home(target)
    fitted = {key: found[key].to(device, dtype if found[key].is_floating_point() else None) for key in wanted}
    head.load_state_dict(fitted, assign=True)
    if isinstance(head, Body):
        head.rotary = LlamaRotaryEmbedding(head.config).to(device)  # type: ignore[arg-type]  # which no file holds


def of_target(target: PreTrainedModel, weights: Weights) -> Weights:
    """The target's own weights in the places where a head may have none, and these lack them."""
    embedding: Any = target.get_input_embeddings()
    output: Any = target.get_output_embeddings()
    if "lm_head.weight" in weights:
        return {"embed_tokens.weight": embedding.weight}
    offsets = weights.get("d2t")
    rows = output.weight if offsets is None else output.weight[torch.arange(len(offsets)) + offsets]
    return {"embed_tokens.weight": embedding.weight, "lm_head.weight": rows}
