"""Attention with shared keys and values: the same as transformers', used for trees alone, and nothing left behind."""

import pytest
import torch
from helpers.tiny import tiny_model
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from multidraft.models import passes
from multidraft.models.huggingface import CausalLM


@pytest.mark.parametrize(("groups", "new", "slots"), [(1, 4, 9), (2, 4, 9), (4, 1, 9), (4, 7, 300), (2, 40, 41)])
def test_as_transformers(groups: int, new: int, slots: int) -> None:
    random = torch.Generator().manual_seed(0)
    query = torch.randn(3, 2 * groups, new, 8, generator=random)
    key, value = torch.randn(2, 3, 2, slots, 8, generator=random)
    hidden = torch.rand(3, 1, new, slots, generator=random) < 0.4
    hidden[..., 0] = False
    mask = torch.zeros(3, 1, new, slots).masked_fill(hidden, torch.finfo(torch.float32).min)
    layer = torch.nn.Module()
    layer.num_key_value_groups = groups
    ours, theirs = (
        way(layer, query, key, value, mask, scaling=0.3)[0] for way in (passes.attend, sdpa_attention_forward)
    )
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert ours.shape == theirs.shape == (3, new, 2 * groups, 8)


def test_trees_use_it_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = tiny_model("llama", num_attention_heads=4, num_key_value_heads=2), list[int]()

    def noted(*given: torch.Tensor, **more: float) -> torch.Tensor:
        calls.append(given[0].shape[2])
        return torch.nn.functional.scaled_dot_product_attention(*given, **more)

    monkeypatch.setattr(passes, "scaled_dot_product_attention", noted)
    reader = CausalLM(model, 64)
    reader.forward([[1, 2, 3]], [[-1, 0, 0]])
    assert calls == [6] * model.config.num_hidden_layers  # three tokens of two heads each
    model(torch.tensor([[1, 2, 3]]))
    assert len(calls) == model.config.num_hidden_layers
    assert model.config._attn_implementation == "sdpa"


def test_a_failure_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama", num_attention_heads=4, num_key_value_heads=2)

    def fails(*_: torch.Tensor, **__: float) -> torch.Tensor:
        raise MemoryError

    monkeypatch.setattr(passes, "scaled_dot_product_attention", fails)
    with pytest.raises(MemoryError):
        CausalLM(model, 64).forward([[1, 2, 3]], [[-1, 0, 0]])
    assert model.config._attn_implementation == "sdpa"
