"""Decoder layers of few products: what transformers gives, for known layers only, and anew where weights change."""

from copy import deepcopy

import pytest
import torch
from tiny import tiny_model
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from multidraft.models import decoder_layers, passes
from multidraft.models.decoder_layers import DecoderLayer
from multidraft.models.huggingface import CausalLM
from multidraft.models.products import MAX_PACKED_TOKENS

ERRORS = {torch.float32: 2e-5, torch.bfloat16: 0.1}  # of logits of about ten
FAMILIES = ["llama", "qwen2 window"]
TREE = [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]], [[-1, 0, 0, 1, 2], [-1, 0, 1, 1, 0]]


def new_model(family: str = "llama") -> PreTrainedModel:
    """One that no other test has read with."""
    return deepcopy(tiny_model(family))


def layers_of(model: PreTrainedModel) -> list[DecoderLayer]:
    """The decoder layers that were taken over."""
    return [layer for layer in passes.REPLACEMENTS_BY_MODULE[model] if isinstance(layer, DecoderLayer)]


def read(model: PreTrainedModel) -> Tensor:
    """The logits of a tree in each of two rows, behind texts of different lengths."""
    reader = CausalLM(model, 64)
    reader.forward([[1, 2, 3], [4]], [[-1, 0, 1], [-1]], "none")
    reader.commit([[0, 1, 2], [0]])
    return reader.forward(*TREE)


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("family", FAMILIES)
def test_as_transformers(family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (new_model(family).to(dtype) for _ in range(2))
    logits = read(ours)
    assert len(layers_of(ours)) == ours.config.num_hidden_layers
    monkeypatch.setattr(DecoderLayer, "fits", lambda _: False)
    torch.testing.assert_close(logits, read(theirs), atol=ERRORS[dtype], rtol=0)
    assert not layers_of(theirs)
    assert not any("forward" in part.__dict__ for part in ours.modules())


@pytest.mark.parametrize("fault", ["rotate", "let_through", "normalise"])
def test_a_layer_that_computes_something_else_is_left_alone(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The biased twin: the sample has to notice a part that does nothing."""
    nothing = {
        "rotate": lambda *_: None,
        "let_through": lambda gates: gates[..., : gates.shape[-1] // 2].contiguous(),
        "normalise": lambda states, *_: states,
    }
    monkeypatch.setattr(decoder_layers, fault, nothing[fault])
    model = new_model()
    read(model)
    assert not layers_of(model)


def test_a_layer_of_another_kind_is_left_alone() -> None:
    """As one that somebody derived, and whose forward does more."""

    class Louder(LlamaDecoderLayer):
        def forward(self, *values: Tensor, **named: Tensor) -> Tensor:
            return 1.001 * super().forward(*values, **named)

    model, plain = new_model(), new_model()
    for layer in model.model.layers:
        layer.__class__ = Louder
    assert not torch.allclose(read(model), read(plain), rtol=1e-5)
    assert not layers_of(model)


@pytest.mark.parametrize("change", ["weight", "norm", "module", "hook"])
def test_what_changes_a_layer_is_seen(change: str) -> None:
    model, seen = new_model(), list[int]()
    before = read(model)
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        if change == "weight":
            attention.v_proj.weight.mul_(2)
        elif change == "norm":
            model.model.layers[1].input_layernorm.weight.mul_(2)
        elif change == "module":
            attention.o_proj = nn.Linear(attention.o_proj.in_features, attention.o_proj.out_features)
        else:
            attention.o_proj.register_forward_hook(lambda *_: seen.append(1))
    after = read(model)
    assert len(layers_of(model)) == (1 if change == "hook" else 2)
    assert bool(seen) == (change == "hook")
    assert torch.allclose(before, after, atol=1e-4) == (change == "hook")


def test_a_pass_of_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which transformers computes where packed weights are made for few."""
    count = MAX_PACKED_TOKENS + 2
    prompt, parents = [list(range(1, count + 1))], [list(range(-1, count - 1))]
    ours = CausalLM(new_model(), 256).forward(prompt, parents)
    monkeypatch.setattr(DecoderLayer, "fits", lambda _: False)
    theirs = CausalLM(new_model(), 256).forward(prompt, parents)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
