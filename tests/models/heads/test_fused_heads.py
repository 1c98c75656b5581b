"""Layers of heads as four products: with exact weights what the module gives, at every node of a tree."""

import pytest
import torch
from heads import head_of, plain_logits, states_of
from tiny import tiny_model
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from multidraft.models import decoder_layers, fused_loops, passes
from multidraft.models.heads import fused
from multidraft.models.heads.drafters import EagleDrafter
from multidraft.models.heads.fused import HeadLayer, Rotary
from multidraft.models.int8 import Int8Product
from multidraft.models.passes import replacements_of
from multidraft.models.products import product_of

TEXT, TREE = [3, 1, 4, 1, 5], {(9,): -1, (2,): -1, (9, 6): 0, (9, 6, 5): 2}  # of each path, where its parent is
CASES = ["eagle3", "eagle3.1"]


def read(name: str) -> list[torch.Tensor]:
    """The logits of a tree below a text's last token, which the head reads level by level."""
    head = head_of(name).new(64)
    head.observe([states_of(tiny_model("llama"), TEXT[:-1], head.hidden_layers)])
    before = len(TEXT) - 1
    head.forward([TEXT[:-1]], [list(range(-1, before - 1))], "none")
    head.commit([list(range(before))])
    parents = [parent + 1 for parent in TREE.values()]
    logits = head.forward([TEXT[-1:] + [path[-1] for path in TREE]], [[-1, *parents]])
    return list(logits[0])


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of any size are fused, and weights stay as they are."""
    monkeypatch.setattr(fused, "MIN_PACKED_NUMBERS", 0)
    monkeypatch.setattr(HeadLayer, "product_of", staticmethod(product_of))
    passes.REPLACEMENTS_BY_MODULE.clear()


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("name", CASES)
def test_as_the_module(name: str) -> None:
    logits = read(name)
    kinds = [type(part) for part in passes.REPLACEMENTS_BY_MODULE[head_of(name).module]]
    assert kinds.count(HeadLayer) == 1
    for path, line in zip([(), *TREE], logits, strict=True):
        torch.testing.assert_close(line, plain_logits(name, TEXT, list(path)), atol=1e-4, rtol=1e-4)
    passes.REPLACEMENTS_BY_MODULE.clear()


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("fault", ["rotate", "let_through"])
def test_a_wrong_twin_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {"rotate": lambda *_: None, "let_through": lambda gates: gates[..., : gates.shape[-1] // 2].contiguous()}
    monkeypatch.setattr(decoder_layers, fault, nothing[fault])
    path = list(TREE)[-1]
    assert not torch.allclose(read("eagle3")[-1], plain_logits("eagle3", TEXT, list(path)), atol=1e-2)
    passes.REPLACEMENTS_BY_MODULE.clear()


@pytest.mark.usefixtures("exact")
def test_layers_with_norms_of_queries_are_left_alone() -> None:
    name = "eagle3 reduced, two layers"
    read(name)
    assert not any(isinstance(part, HeadLayer) for part in passes.REPLACEMENTS_BY_MODULE[head_of(name).module])
    passes.REPLACEMENTS_BY_MODULE.clear()


@pytest.mark.usefixtures("exact")
def test_wrong_angles_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "angles", lambda positions, *others: fused_loops.angles(positions + 1, *others))
    with pytest.raises(AssertionError, match="not close"):
        Rotary(rotary("default"), {}, "")
    assert not any(isinstance(part, Rotary) for part in replacements_of(nn.Sequential(rotary("default")), (Rotary,)))


def rotary(kind: str) -> LlamaRotaryEmbedding:
    """The angles of a small model; `dynamic` ones depend on the longest text."""
    scaling = {"rope_type": kind, "rope_theta": 100.0, "factor": 2.0}
    sizes = dict(hidden_size=32, num_attention_heads=2, max_position_embeddings=64)
    return LlamaRotaryEmbedding(LlamaConfig(rope_parameters=scaling, **sizes))


@pytest.mark.parametrize(("kind", "fits"), [("default", True), ("linear", True), ("dynamic", False)])
def test_angles(kind: str, fits: bool) -> None:
    module, positions = rotary(kind), torch.tensor([[3, 0], [5000, 131_071]])
    assert Rotary.fits(module) == fits
    if fits:
        expected = module(torch.zeros(1), positions)
        torch.testing.assert_close(Rotary(module, {}, "").forward(torch.zeros(1), positions), expected)
    else:
        assert not Rotary.fits(nn.Identity())


def test_weights_are_rounded() -> None:
    """Drafts are drawn from what this gives, so that it changes nothing but the acceptance."""
    assert HeadLayer.product_of is Int8Product
    assert HeadLayer in EagleDrafter.kinds
