"""Which Hugging Face models can be trusted with trees: the others are refused by name, never wrong in silence."""

import inspect
import warnings

import torch
from transformers import PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.models import versions

LAYER_TYPES = {"full_attention", "sliding_attention"}
ENCODERS = (
    "bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta "
    "roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl xmod"
).split()
UNFIT = {
    "gpt_neo": "builds its own local mask, which ignores the tree; use another model",  # it counts slots, not positions
    **{name: "is an encoder, whose tokens see later ones; use a decoder-only model" for name in ENCODERS},
    **versions.UNFIT,
}


def check_supported(model: PreTrainedModel) -> None:
    """Raise AdviceError, which names the model and the reason, unless its trees can be trusted."""
    name, config = model.config.model_type, model.config.get_text_config(decoder=True)
    if reason := UNFIT.get(name):
        raise AdviceError(f"{name} {reason}")
    other_layers = sorted(set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES)
    if other_layers or getattr(model, "_is_stateful", False):
        what = f"layers of type {', '.join(other_layers)}" if other_layers else "a recurrent state"
        raise AdviceError(
            f"{name} has {what}, which cannot be rolled back to a path of a tree; use a model with full or sliding "
            "attention only"
        )
    if getattr(config, "is_encoder_decoder", False):
        raise AdviceError(f"{name} is an encoder-decoder; use a decoder-only model")
    if not model.can_generate():
        raise AdviceError(f"{type(model).__name__} gives no logits of tokens; load {name} with AutoModelForCausalLM")
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
    """Raise unless the forward pass takes positions and a mask, and is the same at every call."""
    config = model.config.get_text_config(decoder=True)
    attention = config._attn_implementation
    if "position_ids" not in inspect.signature(model.forward).parameters or getattr(config, "alibi", False):
        raise AdviceError(f"{name} takes no explicit positions; use a model with rotary or learned positions")
    if attention not in ("sdpa", "eager"):
        raise AdviceError(f'{attention} takes no tree mask; load {name} with attn_implementation="sdpa" or "eager"')
    if model.training:
        raise AdviceError(
            f"{name} is in training mode, where dropout changes its distribution; call model.eval() first"
        )
