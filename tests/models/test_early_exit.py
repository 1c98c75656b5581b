"""The target's own first layers as a drafter: its weights, its cache, its norm and head."""

import copy

import pytest
import torch
from tiny import CONFIGURATIONS, tiny_model

from multidraft.errors import AdviceError
from multidraft.models.early_exit import first_layers

LAYERED = [name for name in CONFIGURATIONS if name.split()[0] not in ("gpt2", "gptj", "opt", "falcon")]


@pytest.mark.parametrize("name", LAYERED)
def test_first_layers_equal_a_model_built_of_them(name):
    model = tiny_model(name, "eager")
    before = copy.deepcopy(model.state_dict())
    shallow = first_layers(model, 1)
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = 1
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1]
    built = type(model)(config).eval()
    built.load_state_dict({key: value for key, value in before.items() if "layers.1." not in key})
    ids = torch.arange(9)[None]
    whole = model(ids).logits
    assert torch.equal(shallow(ids).logits, built(ids).logits)
    assert not torch.allclose(shallow(ids).logits, whole)
    assert torch.equal(model(ids).logits, whole)
    assert model.config.num_hidden_layers == 2
    pointers = {parameter.data_ptr() for parameter in model.parameters()}
    assert {parameter.data_ptr() for parameter in shallow.parameters()} < pointers


@pytest.mark.parametrize(
    ("model", "count", "advice"),
    [
        ("gpt2", 1, "the layers of gpt2 cannot be cut"),
        ("llama", 2, "2 of 2 layers make no drafter; use 1 to 1"),
        ("llama", 0, "0 of 2 layers"),
    ],
)
def test_first_layers_advise(model, count, advice):
    with pytest.raises(AdviceError, match=advice):
        first_layers(tiny_model(model), count)


def test_first_layers_of_a_model_spread_over_devices_are_refused():
    model = copy.deepcopy(tiny_model("llama"))
    model.base_model.forward = model.base_model.forward  # as accelerate leaves it: bound to this very module
    with pytest.raises(AdviceError, match="load it on one"):
        first_layers(model, 1)
