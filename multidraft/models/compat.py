"""Which Hugging Face models can be trusted with trees, and what differs between transformers 4.57 and the newest.

Models that cannot are refused by name, never wrong in silence. What is private in transformers is used here alone.
"""

import inspect
import json
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from packaging.version import Version
from torch import nn
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    __version__,
)
from transformers.generation import GenerationMixin

from multidraft.errors import AdviceError

BEFORE_5 = Version(__version__) < Version("5")
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
if BEFORE_5:  # where nothing in the model says so
    UNFIT |= {
        "moshi": "ignores explicit positions before transformers 5; update it",
        "xglm": "adds the cache's length to explicit positions before transformers 5; update it",
    }


def is_stateful(model: PreTrainedModel) -> bool:
    """Whether it remembers more than keys and values."""
    types = set(getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ())
    others = {kind for kind in types if not kind.endswith("attention") or kind == "linear_attention"}
    return bool(others) or getattr(model, "_is_stateful", False) or "cache_params" in called(model)


def needs_paths(model: PreTrainedModel) -> bool:
    """Whether a mask and positions cannot say what its tokens see."""
    config = model.config.get_text_config(decoder=True)
    types = set(getattr(config, "layer_types", None) or ())
    positions = "position_ids" in called(model) and not getattr(config, "alibi", False)
    own_mask = model.config.model_type == "gpt_neo"  # which counts slots, not positions
    return is_stateful(model) or own_mask or not positions or not types <= MASKED


def continues(model: PreTrainedModel) -> bool:
    """Whether several tokens can be read behind others in one pass."""
    return not is_stateful(model) or model.config.model_type in CONTINUING


def memory_of(model: PreTrainedModel) -> str:
    """What its forward pass calls that which it remembers."""
    return next(name for name in MEMORIES if name in called(model))


def called(model: PreTrainedModel) -> Collection[str]:
    """What its forward pass may be called with."""
    return inspect.signature(model.forward).parameters


def check_supported(model: PreTrainedModel) -> None:
    """Raise AdviceError, which names the model and the reason, unless its trees can be trusted."""
    name, config = model.config.model_type, model.config.get_text_config(decoder=True)
    if reason := UNFIT.get(name):
        raise AdviceError(f"{name} {reason}")
    if getattr(config, "is_encoder_decoder", False):
        raise AdviceError(f"{name} is an encoder-decoder; use a decoder-only model")
    if not model.can_generate():
        raise AdviceError(f"{type(model).__name__} gives no logits of tokens; load {name} with AutoModelForCausalLM")
    if is_stateful(model) and Version(__version__) < STATES:
        raise AdviceError(f"{name} has a recurrent state, which is read from transformers {STATES} on; update it")
    if not any(kind in called(model) for kind in MEMORIES):
        raise AdviceError(f"{name} gives nothing to go on from after a pass; use another model")
    check_call(model, name)
    if any(scales_by_pass(module) for module in model.modules()):
        warnings.warn(
            f"{name} is quantised with scales of whole passes: a token's probabilities then depend a little on what is "
            "read beside it, and no decoding has exactly one law; quantise weights only where that matters",
            stacklevel=3,
        )


def scales_by_pass(module: torch.nn.Module) -> bool:
    """Whether a layer rounds all its inputs together (dynamic int8 of PyTorch)."""
    return isinstance(module, torch.ao.nn.quantized.dynamic.Linear) and module._packed_params.dtype == torch.qint8


def check_call(model: PreTrainedModel, name: str) -> None:
    """Raise unless the forward pass takes a mask where it needs one, and is the same at every call."""
    attention = model.config.get_text_config(decoder=True)._attn_implementation
    if attention not in ("sdpa", "eager") and not needs_paths(model):
        raise AdviceError(f'{attention} takes no tree mask; load {name} with attn_implementation="sdpa" or "eager"')
    if model.training:
        raise AdviceError(
            f"{name} is in training mode, where dropout changes its distribution; call model.eval() first"
        )


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
