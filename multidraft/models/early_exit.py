"""The target's own first layers as a drafter: no second model, and no second copy of its weights."""

import copy
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.models import compat
from multidraft.models.base import LanguageModel


def first_layers(model: PreTrainedModel | LanguageModel, count: int) -> PreTrainedModel:
    """A model of the first `count` layers, between the same embedding and the same norm and head.

    Every weight is shared with `model`, which stays as it was; the result drafts like any other model. Raises
    AdviceError for a family whose decoder does not keep its layers in one list `layers`, and for a wrong count
    (LayerSkip, Elhoushi et al., 2024; Draft & Verify, Zhang et al., 2023: there the layers are trained or chosen for
    it).
    """
    if not isinstance(model, PreTrainedModel):
        raise AdviceError(f"the layers of a {type(model).__name__} cannot be cut; draft by another model or ngram")
    (name, body), config, kind = compat.body(model), model.config, model.config.model_type
    layers = getattr(body, "layers", None)
    if not isinstance(layers, nn.ModuleList) or len(layers) != getattr(config, "num_hidden_layers", None):
        raise AdviceError(f"the layers of {kind} cannot be cut; use a family such as llama, or a draft model")
    if "forward" in vars(model) or "forward" in vars(body):  # accelerate's, which would call the whole model
        raise AdviceError(f"this {kind} is spread over devices; load it on one to draft by its first layers")
    if not 1 <= count < len(layers):
        raise AdviceError(f"{count} of {len(layers)} layers make no drafter; use 1 to {len(layers) - 1}")
    shallow: Any = shared(model)
    cut: Any = shared(body)
    shallow.config = cut.config = cut_config(config, count)
    cut.layers = layers[:count]
    setattr(shallow, name, cut)
    return shallow


def shared(module: nn.Module) -> nn.Module:
    """Another module with the very same parameters, buffers and children, whose children can be replaced."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    return other


def cut_config(config: PretrainedConfig, count: int) -> PretrainedConfig:
    """The configuration of the first layers."""
    cut = copy.deepcopy(config)
    if getattr(cut, "layer_types", None) is not None:
        cut.layer_types = cut.layer_types[:count]
    cut.num_hidden_layers = count
    return cut
