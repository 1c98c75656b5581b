"""The files heads come in, `speculators`' and those first published: `config.json` and safetensors.

Layer k is what `output_hidden_states` calls k, in all of them: 0 is the embedding, k what decoder layer k - 1 gives,
the last one normed. EAGLE's `eagle_aux_hidden_state_layer_ids` and speculators' `aux_hidden_state_layer_ids` mean that;
DFlash's own `target_layer_ids` are one less.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig

from multidraft.errors import AdviceError
from multidraft.io import files

Weights = dict[str, Tensor]
KINDS = EAGLE3, DFLASH, MEDUSA = "eagle3", "dflash", "medusa"
NEEDS = "give a folder with the config.json and the weights of an EAGLE-3, DFlash or Medusa head"
DROPPED = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight")  # that inference does not need
SHAPE = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
FAMILIES = ("llama", "qwen3")


@dataclass(frozen=True)
class Settings:
    """What a head's `config.json` says."""

    kind: str
    layer: PretrainedConfig  # of its decoder layers, Llama's or Qwen3's; `vocab_size` is the target's
    layers: tuple[int, ...]  # of the target, whose states it reads
    drafted: int  # tokens that it has
    target_width: int
    target_name: str | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    logit_scale: float = 1.0
    block: int = 0  # DFlash: tokens of a block, the one that is known among them
    mask_token: int = 0  # DFlash: stands for the others
    from_anchor: bool = False  # DFlash: the known token's place says what follows it
    causal_window: bool = True  # DFlash: in layers with a window a block's token sees none behind it
    embedding_scale: float = 1.0
    heads: int = 0  # Medusa
    depth: int = 1  # Medusa: layers of each head

    @property
    def is_reduced(self) -> bool:
        """Whether it has only some of the target's tokens."""
        return self.drafted != self.layer.vocab_size


def usual_layers(count: int) -> tuple[int, int, int]:
    """The layers of a target that EAGLE-3 reads where nothing is said.

    >>> usual_layers(30)
    (2, 15, 27)
    """
    return 2, count // 2, count - 3


def read_settings(folder: Path, target: PretrainedConfig) -> Settings:
    """What the configuration in a folder says, for this target; raises AdviceError where that is no head."""
    path = folder / "config.json"
    if not path.is_file():
        raise AdviceError(f"folder {str(folder)!r} has no config.json; {NEEDS}")
    try:
        found = json.loads(files.content(path, "the configuration"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise AdviceError(f"config.json in {str(folder)!r} is broken: it holds no JSON object; get the file again")
    return {EAGLE3: eagle3, DFLASH: dflash, MEDUSA: medusa}[kind_of(found, folder)](found, target)


def kind_of(found: dict[str, Any], folder: Path) -> str:
    """Which head a configuration is of; raises AdviceError where it is of none that can be read."""
    names = [str(found.get("speculators_model_type", "")), *map(str, found.get("architectures") or [])]
    names = [str(found.get("model_type", "")), *names]
    for kind in KINDS:
        if any(name.lower().rstrip("_").replace("speculator", "").replace("draftmodel", "") == kind for name in names):
            return kind
    if "eagle_config" in found or any("eagle3" in name.lower() for name in names):
        return EAGLE3
    if "dflash_config" in found:
        return DFLASH
    if "medusa_num_heads" in found:
        return MEDUSA
    said = ", ".join(name for name in names if name) or "nothing"
    raise AdviceError(f"config.json in {str(folder)!r} is of no head that can be read ({said}); {NEEDS}")


def layer_of(found: dict[str, Any], size: int) -> PretrainedConfig:
    """The configuration of the decoder layers, which stands by itself in speculators' files, and on top in others."""
    own = dict(found.get("transformer_layer_config") or found)
    family = own.pop("model_type", "llama")
    family = family if family in FAMILIES else "qwen3" if "qwen3" in str(family) else "llama"
    for name in ("architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "quantization_config"):
        own.pop(name, None)
    if own.get("vocab_size", size) != size:
        raise AdviceError(
            f"the head is for a target of {own['vocab_size']} tokens and this one has {size}; give the target that it "
            "was trained for"
        )
    own["vocab_size"] = size
    if not own.get("layer_types"):
        own.pop("layer_types", None)
    own = {name: value for name, value in own.items() if value is not None or name not in SHAPE}
    return AutoConfig.for_model(family, **own)


def shared(said: dict[str, Any], layer: PretrainedConfig) -> dict[str, Any]:
    """What heads with layers of their own say alike of their tokens and their target."""
    return {
        "drafted": said.get("draft_vocab_size") or layer.vocab_size,
        "target_width": said.get("target_hidden_size") or layer.hidden_size,
        "target_name": verifier(said),
    }


def eagle3(found: dict[str, Any], target: PretrainedConfig) -> Settings:
    """An EAGLE-3 head, whose flags may stand on top or in `eagle_config`."""
    said = dict(found.get("eagle_config") or {}) | found
    layer = layer_of(found, target.vocab_size)
    count = said.get("num_aux_hidden_states")
    layers = said.get("eagle_aux_hidden_state_layer_ids") or usual_layers(target.num_hidden_layers)
    if count is not None and count != len(layers):
        raise AdviceError(f"the head reads {count} layers of its target and names {len(layers)}; get its files again")
    flags: dict[str, Any] = {
        name: bool(said.get(name)) for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    }
    return Settings(
        EAGLE3,
        layer,
        tuple(layers),
        **shared(said, layer),
        logit_scale=float(said.get("logit_scale") or 1.0),
        **flags,
    )


def dflash(found: dict[str, Any], target: PretrainedConfig) -> Settings:
    """A DFlash head; the first files count decoder layers, so that i is state i + 1."""
    said = dict(found.get("dflash_config") or {}) | found
    layer = layer_of({"model_type": "qwen3"} | found, target.vocab_size)
    layers = said.get("aux_hidden_state_layer_ids") or [each + 1 for each in said.get("target_layer_ids") or ()]
    if not layers or said.get("mask_token_id") is None or not said.get("block_size"):
        raise AdviceError("the head's config.json lacks target_layer_ids, mask_token_id or block_size; get it again")
    return Settings(
        DFLASH,
        layer,
        tuple(layers),
        **shared(said, layer),
        block=said["block_size"],
        mask_token=said["mask_token_id"],
        from_anchor=bool(said.get("sample_from_anchor")),
        causal_window=not said.get("sliding_window_non_causal"),
        embedding_scale=float(said.get("input_embedding_scale") or 1.0),
    )


def medusa(found: dict[str, Any], target: PretrainedConfig) -> Settings:
    """Medusa heads, which read the last state alone."""
    heads = found.get("medusa_num_heads") or found.get("num_heads")
    if not heads:
        raise AdviceError("the heads' config.json has no medusa_num_heads; get it again")
    width = found.get("hidden_size") or target.hidden_size
    layer = AutoConfig.for_model("llama", hidden_size=width, vocab_size=target.vocab_size)
    return Settings(
        MEDUSA,
        layer,
        (target.num_hidden_layers,),
        drafted=found.get("truncated_vocab_size") or found.get("draft_vocab_size") or target.vocab_size,
        target_width=width,
        target_name=found.get("base_model_name_or_path"),
        heads=heads,
        depth=found.get("medusa_num_layers") or found.get("num_hidden_layers") or 1,
    )


def verifier(found: dict[str, Any]) -> str | None:
    """The name of the target that speculators' files give."""
    return ((found.get("speculators_config") or {}).get("verifier") or {}).get("name_or_path")


def read_weights(folder: Path) -> Weights:
    """All tensors of a folder by speculators' names; raises AdviceError where there are none."""
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
    return {renamed(name): value for name, value in found.items() if "rotary" not in name and name not in DROPPED}


def medusa_names(weights: Weights) -> Weights:
    """Medusa's weights by the names first published, whichever way they are nested; `token_map` becomes an offset."""
    found = {name.removeprefix("medusa_heads.").removeprefix("medusa_head."): each for name, each in weights.items()}
    tokens = found.pop("token_map", None)
    if tokens is not None:
        found["d2t"] = tokens.long() - torch.arange(len(tokens))
    return found


def medusa_configuration(settings: Settings, name: str) -> dict[str, Any]:
    """What `config.json` of Medusa heads says."""
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "base_model_name_or_path": name,
        "medusa_num_heads": settings.heads,
        "medusa_num_layers": settings.depth,
        "hidden_size": settings.target_width,
        "vocab_size": settings.layer.vocab_size,
        "truncated_vocab_size": settings.drafted,
    }


def renamed(name: str) -> str:
    """speculators' name of a weight.

    >>> renamed("midlayer.self_attn.q_proj.weight")
    'layers.0.self_attn.q_proj.weight'
    """
    return name.removeprefix("model.").replace("midlayer.", "layers.0.", 1)


def write(folder: Path, settings: dict[str, Any], weights: Weights) -> None:
    """`config.json` and `model.safetensors`, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / (files.NEW + "model.safetensors")
    save_file({name: value.contiguous() for name, value in weights.items()}, new, {"format": "pt"})
    new.replace(folder / "model.safetensors")
    files.write(folder / "config.json", (json.dumps(settings, indent=2) + "\n").encode())


def configuration(settings: Settings, name: str, architectures: Sequence[str], tokens: int) -> dict[str, Any]:
    """What `config.json` says in speculators' format of an EAGLE-3 or DFlash head that drafts so many tokens."""
    config, kind = settings.layer.to_diff_dict(), settings.kind
    proposal = {"proposal_type": "greedy", "speculative_tokens": tokens}
    said: dict[str, Any] = {
        "architectures": ["Eagle3DraftModel" if kind == EAGLE3 else "DFlashDraftModel"],
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        "transformer_layer_config": config,
        "draft_vocab_size": settings.drafted,
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": name, "architectures": list(architectures)},
        },
    }
    if settings.target_width != settings.layer.hidden_size:
        said["target_hidden_size"] = settings.target_width
    if kind == EAGLE3:
        flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
        said |= {"eagle_aux_hidden_state_layer_ids": list(settings.layers)}
        return said | {flag: getattr(settings, flag) for flag in flags}
    said |= {"aux_hidden_state_layer_ids": list(settings.layers), "block_size": settings.block}
    said |= {"sliding_window_non_causal": not settings.causal_window}
    return said | {"mask_token_id": settings.mask_token, "sample_from_anchor": settings.from_anchor}


def with_target(settings: Settings, target: PretrainedConfig, weights: Weights) -> Settings:
    """The settings with the number of tokens that the weights have; raises AdviceError where the target is another."""
    if settings.target_width != target.hidden_size:
        raise AdviceError(
            f"the head is for a target of width {settings.target_width} and this one has {target.hidden_size}; "
            "give the target that it was trained for"
        )
    if max(settings.layers) > target.num_hidden_layers:
        raise AdviceError(
            f"the head reads layer {max(settings.layers)} of its target and this one has {target.num_hidden_layers}; "
            "give the target that it was trained for"
        )
    if "d2t" in weights:
        return replace(settings, drafted=len(weights["d2t"]))
    return settings
