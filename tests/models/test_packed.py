"""Packed weights: the numbers of the layers themselves, made anew where weights change, and a model left as it was."""

import gc
from copy import deepcopy
from weakref import ref

import pytest
import torch
from torch import Tensor, nn

from multidraft.models import passes as module
from multidraft.models.passes import Layer, packed

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def two_layers(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 160), nn.SiLU(), nn.Linear(160, 128, bias=False), nn.Linear(128, 3)).to(dtype)


def read(model: nn.Module, inputs: Tensor) -> Tensor:
    with torch.inference_mode(), packed(model):
        return model(inputs)


@BOTH
@pytest.mark.parametrize("shape", [(1, 1, 128), (2, 5, 128), (70, 128)])
def test_as_without(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    model, inputs = two_layers(dtype), torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    torch.testing.assert_close(read(model, inputs), model(inputs).detach())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The layers whose packed weights were used."""
    seen, forward = list[nn.Module](), Layer.forward

    def noted(self: Layer, inputs: Tensor) -> Tensor:
        seen.append(self.module)
        return forward(self, inputs)

    monkeypatch.setattr(Layer, "forward", noted)
    return seen


def test_large_layers_use_it_and_nothing_stays_behind(calls: list[nn.Module]) -> None:
    model, inputs = two_layers(), torch.ones(1, 128)
    read(model, inputs)
    assert calls[2:] == [model[0], model[2]]  # after one look at each
    model(inputs)
    assert len(calls) == 4
    assert not any("forward" in part.__dict__ for part in model.modules())
    assert torch.equal(deepcopy(model)(inputs), model(inputs))


def test_long_prompts_are_read_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN keeps code for every number of tokens that it has seen."""
    model, counts = two_layers(), list[int]()
    monkeypatch.setattr(
        module, "linear", lambda inputs, *more: counts.append(len(inputs)) or nn.functional.linear(inputs, *more)
    )
    for tokens in (module.MOST, module.MOST + 1):
        inputs = torch.ones(tokens, 128)
        torch.testing.assert_close(read(model, inputs), model(inputs).detach())
    assert counts == [module.MOST + 1] * 2


@pytest.mark.parametrize("way", ["in place", "data", "parameter", "dtype", "bias"])
def test_other_weights_are_seen(way: str) -> None:
    model, inputs = two_layers(), torch.ones(1, 128)
    before = read(model, inputs)
    with torch.no_grad():
        if way == "in place":
            model[0].weight.mul_(2)
        elif way == "data":
            model[0].weight.data = model[0].weight * 2
        elif way == "parameter":
            model[0].weight = nn.Parameter(model[0].weight * 2)
        elif way == "bias":
            model[0].bias = nn.Parameter(model[0].bias + 1)
        else:
            model.to(torch.bfloat16)
            inputs = inputs.to(torch.bfloat16)
    after = read(model, inputs)
    torch.testing.assert_close(after, model(inputs).detach())
    assert after.dtype != before.dtype or not torch.allclose(after, before, atol=1e-3)


def test_what_is_not_packed(calls: list[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = two_layers(), torch.ones(1, 128)
    model[0].forward = model[0].forward  # as a library does that runs layers elsewhere
    read(model, inputs)
    assert model[0] not in calls
    assert "forward" in model[0].__dict__
    for other in (two_layers(torch.float64), two_layers(torch.float16)):
        calls.clear()
        read(other, inputs.to(other[0].weight.dtype))
        assert not calls
    monkeypatch.setattr(module, "available", lambda _: 100_000)
    read(two_layers(), inputs)
    assert not calls


def test_what_takes_a_layer_over_later_stays() -> None:
    model, inputs = two_layers(), torch.ones(1, 128)
    read(model, inputs)
    model[0].forward = hooked = lambda given: torch.zeros(len(given), 160)
    torch.testing.assert_close(read(model, inputs), model(inputs).detach())
    assert model[0].forward is hooked
    assert "forward" not in model[2].__dict__


def test_a_model_that_is_gone_takes_its_packed_weights_along() -> None:
    model = two_layers()
    read(model, torch.ones(1, 128))
    layer = ref(module.PACKED[model][0])
    del model
    gc.collect()
    assert layer() is None


def test_a_layer_that_packs_wrongly_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = two_layers(), torch.ones(1, 128)
    monkeypatch.setattr(Layer, "forward", lambda self, inputs: 2 * nn.functional.linear(inputs, self.weight))
    assert torch.equal(read(model, inputs), model(inputs))


def test_a_failure_leaves_the_model_as_it_was() -> None:
    model = two_layers()
    with pytest.raises(RuntimeError):
        read(model, torch.ones(1, 5))
    assert not any("forward" in part.__dict__ for part in model.modules())


def test_autocast_goes_on_as_before(calls: list[nn.Module]) -> None:
    model = two_layers()
    with torch.autocast("cpu", torch.bfloat16):
        assert read(model, torch.ones(1, 128)).dtype == torch.bfloat16
    assert not calls
