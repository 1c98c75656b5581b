"""What a Hugging Face model's settings say, which models can be trusted with trees, and what versions differ in.

Models that cannot be trusted are refused by name, never wrong in silence. What is private in transformers is used here
alone; versions are 4.57 to the newest.
"""

import inspect
import json
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from packaging.version import Version
from torch import nn
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    __version__,
)
from transformers.generation import GenerationMixin

from multidraft.errors import AdviceError
from multidraft.models.base import Vocabulary

GROUPED = "grouped_sdpa"  # `sdpa` as attention.py computes it, while a pass of ours runs
STATES = Version("5.16")  # since when what recurrent models remember has one form
MASKED = {"full_attention", "sliding_attention"}  # layers in which a mask says what a token sees
MEMORIES = ("past_key_values", "cache_params")  # what models call that which they remember
CONTINUING = (  # with a recurrent state, from which several tokens can be read at once; others are read one by one
    "bamba falcon_h1 granitemoehybrid lfm2 mamba2 nemotron_h olmo_hybrid qwen3_5 qwen3_5_text qwen3_next"
).split()
ENCODERS = (
    "bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta "
    "roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl xmod"
).split()
UNFIT = {
    **{name: "is an encoder, whose tokens see later ones; use a decoder-only model" for name in ENCODERS},
    "recurrent_gemma": "keeps its state in its own layers, where batches cannot part; use another model",
    "rwkv": "is read wrongly by transformers where a batch goes on token by token; use another model",
}
if Version(__version__) < Version("5"):  # where nothing in the model says so
    UNFIT |= {
        "moshi": "ignores explicit positions before transformers 5; update it",
        "xglm": "adds the cache's length to explicit positions before transformers 5; update it",
    }
VOCABULARIES: WeakKeyDictionary[PreTrainedModel, Vocabulary] = WeakKeyDictionary()


def text_config(model: PreTrainedModel) -> PretrainedConfig:
    """The settings of the decoder, where a model has others beside it."""
    return model.config.get_text_config(decoder=True)


def vocabulary_of(model: PreTrainedModel) -> Vocabulary:
    """Its tokens; `target_ids` in the settings of a draft model say that they are a part of the target's."""
    if model not in VOCABULARIES:
        VOCABULARIES[model] = Vocabulary(text_config(model).vocab_size, getattr(model.config, "target_ids", None))
    return VOCABULARIES[model]


def home(model: PreTrainedModel) -> torch.device:
    """Where tokens go in: the device of the first layer, or the one that accelerate runs it on if it is offloaded."""
    if model.device.type != "meta":
        return model.device
    hooks = (getattr(module, "_hf_hook", None) for module in model.modules())
    devices = (getattr(hook, "execution_device", None) for hook in hooks)
    return torch.device(next((device for device in devices if device is not None), "meta"))


def windows(config: PretrainedConfig) -> dict[str, int | None]:
    """The window of each type of layer (None: a token sees all before it); without types, all layers are alike."""
    window, layer_types = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if layer_types is None:
        return {"all": window}
    return {kind: window if kind == "sliding_attention" else None for kind in layer_types}


def context(config: PretrainedConfig) -> int | None:
    """The largest number of tokens in a sequence.

    Rotary frequencies of type longrope change for the whole sequence once it outgrows the original context, and keys in
    a cache would no longer match: such a model is used up to there.
    """
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if "longrope" in (rope.get("rope_type"), rope.get("type")):
        return rope.get("original_max_position_embeddings") or config.original_max_position_embeddings
    return getattr(config, "max_position_embeddings", None)


def is_stateful(model: PreTrainedModel) -> bool:
    """Whether it remembers more than keys and values."""
    types = set(getattr(text_config(model), "layer_types", None) or ())
    others = {kind for kind in types if not kind.endswith("attention") or kind == "linear_attention"}
    return bool(others) or getattr(model, "_is_stateful", False) or "cache_params" in called(model)


def needs_paths(model: PreTrainedModel) -> bool:
    """Whether a mask and positions cannot say what its tokens see."""
    config = text_config(model)
    types = set(getattr(config, "layer_types", None) or ())
    positions = "position_ids" in called(model) and not getattr(config, "alibi", False)
    own_mask = model.config.model_type == "gpt_neo"  # which counts slots, not positions
    return is_stateful(model) or own_mask or not positions or not types <= MASKED


def continues(model: PreTrainedModel) -> bool:
    """Whether several tokens can be read behind others in one pass."""
    return not is_stateful(model) or model.config.model_type in CONTINUING


def called(model: PreTrainedModel) -> Collection[str]:
    """What its forward pass may be called with."""
    return inspect.signature(model.forward).parameters


def check_supported(model: PreTrainedModel) -> None:
    """Raise AdviceError, which names the model and the reason, unless its trees can be trusted."""
    name, config = model.config.model_type, text_config(model)
    attention = config._attn_implementation
    for is_so, what in (
        (name in UNFIT, UNFIT.get(name)),
        (getattr(config, "is_encoder_decoder", False), "is an encoder-decoder; use a decoder-only model"),
        (
            not model.can_generate(),
            f"is a {type(model).__name__} here, which gives no logits of tokens; load it with AutoModelForCausalLM",
        ),
        (
            is_stateful(model) and Version(__version__) < STATES,
            f"has a recurrent state, which is read from transformers {STATES} on; update it",
        ),
        (not set(MEMORIES) & set(called(model)), "gives nothing to go on from after a pass; use another model"),
        (
            attention not in ("sdpa", "eager", GROUPED) and not needs_paths(model),
            f'has attention {attention}, which takes no tree mask; load it with attn_implementation="sdpa" or "eager"',
        ),
        (model.training, "is in training mode, where dropout changes its distribution; call model.eval() first"),
    ):
        if is_so:
            raise AdviceError(f"{name} {what}")
    if any(scales_by_pass(module) for module in model.modules()):
        warnings.warn(
            f"{name} is quantised with scales of whole passes: a token's probabilities then depend a little on what is "
            "read beside it, and no decoding has exactly one law; quantise weights only where that matters",
            stacklevel=3,
        )


def scales_by_pass(module: torch.nn.Module) -> bool:
    """Whether a layer rounds all its inputs together (dynamic int8 of PyTorch)."""
    return isinstance(module, torch.ao.nn.quantized.dynamic.Linear) and module._packed_params.dtype == torch.qint8


def body(model: PreTrainedModel) -> tuple[str, nn.Module]:
    """The model without its head, and its name in the model; before 5, gemma3_text has noted another name."""
    name = model.base_model_prefix if hasattr(model, model.base_model_prefix) else "model"
    return name, getattr(model, name, model)


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the tokenizer under the class name that every version knows; 5 writes one that 4.57 does not."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(config, indent=2) + "\n")


class Builder(GenerationMixin):
    """Stands in for a model where transformers turns a configuration into processors; any target will do."""

    def __init__(self, vocabulary: int):
        self.config: Any = SimpleNamespace(is_encoder_decoder=False, vocab_size=vocabulary)
        self.config.get_text_config = lambda **_: self.config


def logits_processors(
    config: GenerationConfig,
    prompt: Sequence[int],
    vocabulary: int,
    extra: Sequence[LogitsProcessor],
    device: torch.device,
) -> LogitsProcessorList:
    """What `generate` would run for one prompt, in its order; `config` has all end-of-text tokens as a list."""
    ends, builder = config.eos_token_id, cast(Any, Builder(vocabulary))
    config._eos_token_tensor = torch.tensor(ends, device=device) if ends else None
    try:
        return builder._get_logits_processor(
            config,
            input_ids_seq_length=len(prompt),
            encoder_input_ids=torch.tensor([prompt], device=device),
            logits_processor=LogitsProcessorList(extra),
            device=device,
        )
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        what = " ".join(str(error).split())
        raise AdviceError(f"transformers takes no such settings: {what}; check them, or leave them out") from None
