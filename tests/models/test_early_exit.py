"""The target's own first layers as a drafter: its weights, its cache, its norm and head."""

import copy

import pytest
import torch
from tiny import CONFIGURATIONS, tiny_model

from multidraft.errors import AdviceError
from multidraft.models.loading import first_layers

LAYERED = [name for name in CONFIGURATIONS if name.split()[0] not in ("gpt2", "gptj", "opt", "falcon")]


@pytest.mark.parametrize("name", LAYERED)
def test_first_layers_equal_a_model_built_of_them(name):
    model = tiny_model(name, "eager")
    config, before, ids = copy.deepcopy(model.config), copy.deepcopy(model.state_dict()), torch.arange(9)[None]
    shallow, whole = first_layers(model, 1), model(ids).logits
    config.num_hidden_layers = 1
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1]
    built = type(model)(config).eval()
    built.load_state_dict({key: value for key, value in before.items() if "layers.1." not in key})
    assert torch.equal(shallow(ids).logits, built(ids).logits)
    assert not torch.allclose(shallow(ids).logits, whole)
    assert torch.equal(model(ids).logits, whole)
    assert model.config.num_hidden_layers == 2
    pointers = {parameter.data_ptr() for parameter in model.parameters()}
    assert {parameter.data_ptr() for parameter in shallow.parameters()} < pointers


def spread(name: str):
    """A model as accelerate leaves it: its forward pass is bound to this very module."""
    model = copy.deepcopy(tiny_model(name))
    model.base_model.forward = model.base_model.forward
    return model


@pytest.mark.parametrize(
    ("model", "count", "advice"),
    [
        (tiny_model("gpt2"), 1, "the layers of gpt2 cannot be cut"),
        (tiny_model("llama"), 2, "2 of 2 layers make no drafter; use 1 to 1"),
        (tiny_model("llama"), 0, "0 of 2 layers"),
        (spread("llama"), 1, "load it on one"),
    ],
)
def test_first_layers_advise(model, count, advice):
    with pytest.raises(AdviceError, match=advice):
        first_layers(model, count)
