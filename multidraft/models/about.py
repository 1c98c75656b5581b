"""What a Hugging Face model's settings say: its tokens, how far it reads and sees, and where it computes."""

from weakref import WeakKeyDictionary

import torch
from transformers import PretrainedConfig, PreTrainedModel

from multidraft.models.vocabularies import Vocabulary

VOCABULARIES: WeakKeyDictionary[PreTrainedModel, Vocabulary] = WeakKeyDictionary()


def vocabulary_of(model: PreTrainedModel) -> Vocabulary:
    """Its tokens; `target_ids` in the settings of a draft model say that they are a part of the target's."""
    if model not in VOCABULARIES:
        config = model.config.get_text_config(decoder=True)
        VOCABULARIES[model] = Vocabulary(config.vocab_size, getattr(model.config, "target_ids", None))
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
    window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
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
