"""Fast passes: what transformers and the layers themselves give, anew where weights change, and nothing left behind."""

import gc
from copy import deepcopy
from weakref import ref

import pytest
import torch
from tiny import tiny_model
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from multidraft.models import grouped, passes, replacements
from multidraft.models.attention import SlotLists
from multidraft.models.huggingface import CausalLM
from multidraft.models.passes import packed
from multidraft.models.products import can_pack
from multidraft.models.replacements import Layer


@pytest.mark.parametrize(("groups", "num_new", "slots"), [(1, 4, 9), (2, 4, 9), (4, 1, 9), (4, 7, 300), (2, 40, 41)])
def test_attention_as_transformers(groups: int, num_new: int, slots: int) -> None:
    random = torch.Generator().manual_seed(0)
    query = torch.randn(3, 2 * groups, num_new, 8, generator=random)
    key, value = torch.randn(2, 3, 2, slots, 8, generator=random)
    hidden = torch.rand(3, 1, num_new, slots, generator=random) < 0.4
    hidden[..., 0] = False
    mask = torch.zeros(3, 1, num_new, slots).masked_fill(hidden, torch.finfo(torch.float32).min)
    layer = nn.Module()
    layer.num_key_value_groups = groups
    ours, theirs = (
        way(layer, query, key, value, mask, scaling=0.3)[0] for way in (grouped.attend, sdpa_attention_forward)
    )
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_trees_use_our_attention_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = tiny_model("llama", num_attention_heads=4, num_key_value_heads=2), list[int]()

    def noted(*arguments: Tensor, **keywords: float) -> Tensor:
        calls.append(arguments[0].shape[2])
        if len(calls) > 2:
            raise MemoryError
        return nn.functional.scaled_dot_product_attention(*arguments, **keywords)

    monkeypatch.setattr(grouped, "scaled_dot_product_attention", noted)
    monkeypatch.setattr(SlotLists, "of", lambda *_: None)
    reader = CausalLM(model, 64)
    reader.forward([[1, 2, 3]], [[-1, 0, 0]])
    model(torch.tensor([[1, 2, 3]]))
    assert calls == [6, 6]  # in each of two layers three tokens of two heads each
    with pytest.raises(MemoryError):
        reader.forward([[1, 2, 3]], [[-1, 0, 0]])
    assert model.config._attn_implementation == "sdpa"  # after a failure, too


# Packed weights


def two_layers(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 160), nn.SiLU(), nn.Linear(160, 128, bias=False), nn.Linear(128, 3)).to(dtype)


def read(model: nn.Module, inputs: Tensor) -> Tensor:
    with torch.inference_mode(), packed(model):
        return model(inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 128), (2, 5, 128), (70, 128), (200, 128)])
def test_packed_as_without(dtype: torch.dtype, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Long prompts are read as ever: oneDNN keeps code for every number of tokens that it has seen."""
    model, inputs = two_layers(dtype), torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    lengths, plainly = list[int](), nn.functional.linear
    monkeypatch.setattr(
        replacements, "linear", lambda values, *parameters: lengths.append(len(values)) or plainly(values, *parameters)
    )
    torch.testing.assert_close(read(model, inputs), model(inputs).detach(), atol=1e-3, rtol=0.01)
    assert lengths == ([200, 200] if 200 in shape and can_pack(dtype) else [])
    assert can_pack(torch.float32)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The layers whose packed weights were used."""
    seen, forward = list[nn.Module](), Layer.forward
    monkeypatch.setattr(Layer, "forward", lambda self, inputs: seen.append(self.module) or forward(self, inputs))
    return seen


def test_large_layers_use_it_and_nothing_stays_behind(calls: list[nn.Module]) -> None:
    model, inputs = two_layers(), torch.ones(1, 128)
    read(model, inputs)
    assert calls[2:] == [model[0], model[2]]  # after one look at each
    with pytest.raises(RuntimeError):
        read(model, torch.ones(1, 5))
    used = len(calls)
    assert torch.equal(deepcopy(model)(inputs), model(inputs))
    assert len(calls) == used
    assert not any("forward" in part.__dict__ for part in model.modules())


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
            model, inputs = model.to(torch.bfloat16), inputs.to(torch.bfloat16)
    after = read(model, inputs)
    torch.testing.assert_close(after, model(inputs).detach())
    assert after.dtype != before.dtype or not torch.allclose(after, before, atol=1e-3)


def test_a_layer_in_the_place_of_another_is_packed(calls: list[nn.Module]) -> None:
    """As the head of a model is that gets more tokens; the old one is not held any longer."""
    model, inputs = two_layers(), torch.ones(1, 128)
    read(model, inputs)
    model[0] = nn.Linear(128, 160)
    read(model, inputs)
    calls.clear()
    torch.testing.assert_close(read(model, inputs), model(inputs).detach())
    assert calls == [model[0], model[2]]


def test_what_is_not_packed(calls: list[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    for other in (two_layers(torch.float64), two_layers(torch.float16)):
        read(other, torch.ones(1, 128).to(other[0].weight.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        assert read(two_layers(), torch.ones(1, 128)).dtype == torch.bfloat16
    monkeypatch.setattr(passes, "available", lambda _: 100_000)
    read(two_layers(), torch.ones(1, 128))
    assert not calls


def test_what_takes_a_layer_over_stays(calls: list[nn.Module]) -> None:
    """As a library does that runs layers elsewhere, before weights are packed or after."""
    model, inputs = two_layers(), torch.ones(1, 128)
    model[0].forward = model[0].forward
    read(model, inputs)
    assert model[0] not in calls
    model[2].forward = hooked = lambda values: torch.zeros(len(values), 128)
    torch.testing.assert_close(read(model, inputs), model(inputs).detach())
    assert model[2].forward is hooked
    assert "forward" in model[0].__dict__


def test_a_model_that_is_gone_takes_its_packed_weights_along() -> None:
    model = two_layers()
    read(model, torch.ones(1, 128))
    layer = ref(passes.REPLACEMENTS_BY_MODULE[model][0])
    del model
    gc.collect()
    assert layer() is None


def test_a_layer_that_packs_wrongly_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = two_layers(), torch.ones(1, 128)
    monkeypatch.setattr(Layer, "forward", lambda self, inputs: 2 * nn.functional.linear(inputs, self.module.weight))
    assert torch.equal(read(model, inputs), model(inputs))
