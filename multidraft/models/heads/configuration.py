"""What the `config.json` of a head says: `speculators`' form, and those first published.

Layer k is what `output_hidden_states` calls k, in all of them: 0 is the embedding, k what decoder layer k - 1 gives,
the last one normed. EAGLE's `eagle_aux_hidden_state_layer_ids` and speculators' `aux_hidden_state_layer_ids` mean that;
DFlash's own `target_layer_ids` are one less.
"""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from multidraft.errors import AdviceError
from multidraft.io.fields import Field, Flag, Items, Number, Object, Text, Whole, read
from multidraft.models.heads.networks import DFLASH, EAGLE3, KINDS, MEDUSA, Settings
from multidraft.models.huggingface.loading import MAX_SIZES, reason, settings_in

FOLDER_ADVICE = "give a folder with the config.json and the weights of an EAGLE-3, DFlash or Medusa head"
GET_FILES_AGAIN = "get the head's files again"
MARKS = {"eagle_config": EAGLE3, "dflash_config": DFLASH, "medusa_num_heads": MEDUSA}  # by which heads are known
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")  # of EAGLE
MAX_LAYERS, MAX_ATTENTION, MAX_LIST = 64, 2**12, 2**15  # of a head: decoder layers, heads of attention; any list
MAX_BLOCK, MAX_MEDUSA = 256, 64  # tokens of DFlash's block, which all have logits at once; heads
NULLS = ("num_key_value_heads", "head_dim", "sliding_window")  # fields of layers in which null is not the default

SIZE, WIDTH = Whole(1, MAX_SIZES["vocab_size"]), Whole(1, MAX_SIZES["hidden_size"])
POSITION, SCALE, SMALL = Whole(1, 2**40), Number(1e-6, 1e6), Number(0, 1e6)
TARGET_LAYERS = Items(Whole(0, MAX_SIZES["num_hidden_layers"]), 1, MAX_LAYERS)  # layers of a target
SHARES = Items(SCALE, 1, MAX_LIST)
ROTARY_SHARE = Number(0.01, 1)  # share of a head's dimensions
ROTARY_BASE = Number(1, 1e12)  # of rotary frequencies
ROTARY = Object(
    {"rope_type": Text(), "type": Text(), "rope_theta": ROTARY_BASE, "original_max_position_embeddings": POSITION}
    | dict.fromkeys(("factor", "low_freq_factor", "high_freq_factor", "attention_factor"), SCALE)
    | dict.fromkeys(("beta_fast", "beta_slow", "mscale", "mscale_all_dim"), SMALL)
    | {"short_factor": SHARES, "long_factor": SHARES, "partial_rotary_factor": ROTARY_SHARE, "truncate": Flag()}
)
LAYER = Object(
    {"model_type": Text(), "hidden_act": Text(), "vocab_size": SIZE, "hidden_size": WIDTH, "rms_norm_eps": Number(0, 1)}
    | {"intermediate_size": Whole(1, MAX_SIZES["intermediate_size"]), "num_hidden_layers": Whole(1, MAX_LAYERS)}
    | dict.fromkeys(("num_attention_heads", "num_key_value_heads"), Whole(1, MAX_ATTENTION))
    | dict.fromkeys(("attention_bias", "mlp_bias", "use_sliding_window"), Flag())
    | {"head_dim": Whole(2, 2**16), "max_position_embeddings": POSITION, "sliding_window": POSITION}
    | {"layer_types": Items(Text("full_attention|sliding_attention", "full_ or sliding_attention"), 0, MAX_LAYERS)}
    | {"max_window_layers": Whole(0, MAX_SIZES["num_hidden_layers"]), "partial_rotary_factor": ROTARY_SHARE}
    | {"rope_theta": ROTARY_BASE, "rope_scaling": ROTARY, "rope_parameters": ROTARY}
)
LAYER_FIELDS = Object(
    {"model_type": Text(), "speculators_model_type": Text(), "architectures": Items(Text(), 0, 64, default=[])}
    | dict.fromkeys(("eagle_config", "dflash_config", "transformer_layer_config"), Object(default={}))
)
SIZES: dict[str, Field] = {"draft_vocab_size": SIZE, "truncated_vocab_size": SIZE, "target_hidden_size": WIDTH}
FAMILY_FIELDS: dict[str, dict[str, Field]] = {
    EAGLE3: SIZES
    | {"eagle_aux_hidden_state_layer_ids": TARGET_LAYERS, "num_aux_hidden_states": Whole(0, MAX_LAYERS)}
    | {"logit_scale": Number(1e-6, 1e6, default=1.0)}
    | dict.fromkeys(FLAGS, Flag(default=False)),
    DFLASH: SIZES
    | {
        "aux_hidden_state_layer_ids": TARGET_LAYERS,
        "target_layer_ids": Items(Whole(-1, MAX_SIZES["num_hidden_layers"]), 1, 64),
    }
    | {"block_size": Whole(1, MAX_BLOCK, required=True), "mask_token_id": Whole(0, 2**24, required=True)}
    | dict.fromkeys(("sample_from_anchor", "sliding_window_non_causal"), Flag(default=False))
    | {"input_embedding_scale": Number(1e-6, 1e6, default=1.0)},
    MEDUSA: SIZES
    | dict.fromkeys(("medusa_num_heads", "num_heads"), Whole(1, MAX_MEDUSA))
    | dict.fromkeys(("medusa_num_layers", "num_hidden_layers"), Whole(0, MAX_LAYERS)),
}


def read_settings(folder: Path, target: PretrainedConfig) -> Settings:
    """What the configuration in a folder says, for this target; raises AdviceError where it does not fit."""
    path = folder / "config.json"
    if not path.is_file():
        raise AdviceError(f"folder {str(folder)!r} has no config.json; {FOLDER_ADVICE}")
    settings = settings_of(settings_in(path), target, f"the head's config.json in {str(folder)!r}")
    check_fits(settings, target)
    return settings


def target_name(folder: Path) -> str | None:
    """The name of the target that a head's files say it is for; the first EAGLE heads say none."""
    path = folder / "config.json"
    config = settings_in(path) if path.is_file() else {}
    speculators = config.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, dict) else None
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else config.get("base_model_name_or_path")
    return name if isinstance(name, str) and name else None


def check_fits(settings: Settings, target: PretrainedConfig) -> None:
    """Raise where a head is for another target."""
    size, width, last, count = target.vocab_size, target.hidden_size, max(settings.layers), target.num_hidden_layers
    for is_other, what, its in (
        (settings.layer.vocab_size != size, f"is for a target of {settings.layer.vocab_size} tokens", size),
        (settings.target_width != width, f"is for a target of width {settings.target_width}", width),
        (last > count, f"reads layer {last} of its target", count),
        (settings.drafted > size, f"drafts {settings.drafted} tokens", size),
        (settings.mask_token >= size, f"has the mask token {settings.mask_token}", size),
    ):
        if is_other:
            raise AdviceError(f"the head {what} and this one has {its}; give the target that it was trained for")


def settings_of(config: dict[str, Any], target: PretrainedConfig, where: str) -> Settings:
    """What a configuration says, on top or in the part of its kind."""
    named = read(LAYER_FIELDS, config, where, GET_FILES_AGAIN)
    kind = kind_of(named, config, where)
    on_top = {name: value for name, value in config.items() if value is not None}
    fields = read(
        Object(FAMILY_FIELDS[kind]), named["eagle_config"] | named["dflash_config"] | on_top, where, GET_FILES_AGAIN
    )
    of_kind = {EAGLE3: eagle3, DFLASH: dflash, MEDUSA: medusa}[kind](fields, target.num_hidden_layers)
    if kind == MEDUSA:  # which has no decoder layers
        layers = {"hidden_size": config.get("hidden_size") or target.hidden_size, "num_attention_heads": 1}
    else:
        layers = {"model_type": "qwen3" if kind == DFLASH else "llama"} | (named["transformer_layer_config"] or config)
    if (context := getattr(target, "max_position_embeddings", None)) and not layers.get("max_position_embeddings"):
        layers["max_position_embeddings"] = context  # transformers would take its default of the family
    layer = layer_of(layers, target.vocab_size, where)
    drafted = fields["truncated_vocab_size"] or fields["draft_vocab_size"] or layer.vocab_size
    width = fields["target_hidden_size"] or layer.hidden_size
    return Settings(kind, layer, drafted=drafted, target_width=width, **of_kind)


def kind_of(named: dict[str, Any], config: dict[str, Any], where: str) -> str:
    """Which head a configuration is of; raises AdviceError where it is of none that can be read."""
    names = ", ".join(filter(None, [named["model_type"], named["speculators_model_type"], *named["architectures"]]))
    kinds = [kind for kind in KINDS if kind in names.lower()] + [MARKS[mark] for mark in MARKS if mark in config]
    if not kinds and "draft_vocab_size" in config and named["speculators_model_type"] is None:
        return EAGLE3  # the first heads of its authors are named like their target
    if not kinds:
        raise AdviceError(f"{where} is of no head that can be read ({names[:200] or 'no name'}); {FOLDER_ADVICE}")
    return kinds[0]


def layer_of(config: dict[str, Any], size: int, where: str) -> PretrainedConfig:
    """The configuration of the decoder layers, which stands by itself in speculators' files, and on top in others.

    No tokens begin, end or fill texts: what a target says of them is none of its head's business.
    """
    fields = read(LAYER, config, where, GET_FILES_AGAIN)
    family = "qwen3" if "qwen3" in (fields.pop("model_type") or "llama") else "llama"
    fields["layer_types"] = fields["layer_types"] or None
    for name in ("rope_scaling", "rope_parameters"):
        fields[name] = {key: value for key, value in (fields[name] or {}).items() if value is not None} or None
    kept = {name: fields[name] for name in fields if fields[name] is not None or (name in NULLS and name in config)}
    kept |= {f"{end}_token_id": None for end in ("bos", "eos", "pad")}
    try:
        layer = AutoConfig.for_model(family, **{"vocab_size": size} | kept)
    except Exception as error:  # transformers checks more than is checked here, and not the same in every version
        raise AdviceError(f"{where} describes no decoder layers: {reason(error)}; {GET_FILES_AGAIN}") from None
    check_layer(layer, where)
    return layer


def check_layer(layer: PretrainedConfig, where: str) -> None:
    """Raise where numbers of a configuration do not go together."""
    heads, groups, count = layer.num_attention_heads, layer.num_key_value_heads, layer.num_hidden_layers
    width, kinds = getattr(layer, "head_dim", None) or layer.hidden_size // heads, getattr(layer, "layer_types", None)
    for is_wrong, what in (
        (heads % groups, f"{heads} num_attention_heads cannot share {groups} num_key_value_heads"),
        (not width or width % 2, f"heads of {width} dimensions cannot be turned by pairs"),
        (kinds and len(kinds) != count, f"{count} layers have {len(kinds or ())} layer_types"),
    ):
        if is_wrong:
            raise AdviceError(f"{where}: {what}; {GET_FILES_AGAIN}")


def usual_layers(count: int) -> tuple[int, int, int]:
    """The layers of a target that EAGLE-3 reads where nothing is said.

    >>> usual_layers(30)
    (2, 15, 27)
    >>> usual_layers(2)
    (2, 1, 0)
    """
    return min(2, count), count // 2, max(count - 3, 0)


def eagle3(fields: dict[str, Any], count: int) -> dict[str, Any]:
    """An EAGLE-3 head's own settings, for a target of so many layers."""
    layers = tuple(fields["eagle_aux_hidden_state_layer_ids"] or usual_layers(count))
    if fields["num_aux_hidden_states"] not in (None, len(layers)):
        count = fields["num_aux_hidden_states"]
        raise AdviceError(f"the head reads {count} layers of its target and names {len(layers)}; {GET_FILES_AGAIN}")
    return {"layers": layers, "logit_scale": fields["logit_scale"]} | {name: fields[name] for name in FLAGS}


def dflash(fields: dict[str, Any], count: int) -> dict[str, Any]:
    """A DFlash head's; the first files count decoder layers, so that i is state i + 1."""
    layers = fields["aux_hidden_state_layer_ids"] or [layer + 1 for layer in fields["target_layer_ids"] or ()]
    if not layers:
        raise AdviceError(f"the head's config.json lacks target_layer_ids; {GET_FILES_AGAIN}")
    if fields["block_size"] == 1 and not fields["sample_from_anchor"]:
        raise AdviceError(f"the head's block_size is 1, of which the known token takes all; {GET_FILES_AGAIN}")
    return {
        "layers": tuple(layers),
        "block": fields["block_size"],
        "mask_token": fields["mask_token_id"],
        "from_anchor": fields["sample_from_anchor"],
        "causal_window": not fields["sliding_window_non_causal"],
        "embedding_scale": fields["input_embedding_scale"],
    }


def medusa(fields: dict[str, Any], count: int) -> dict[str, Any]:
    """Those of Medusa heads, which read the last state alone."""
    heads, depths = fields["medusa_num_heads"] or fields["num_heads"] or 1, ("medusa_num_layers", "num_hidden_layers")
    depth = next((fields[name] for name in depths if fields[name] is not None), 1)
    return {"layers": (count,), "heads": heads, "depth": depth}
