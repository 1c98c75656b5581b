"""RMS norms in one loop: what transformers gives, only for such norms, and anew where weights change."""

import pytest
import torch
from tiny import tiny_model
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from multidraft.models import passes, replacements
from multidraft.models.huggingface import CausalLM
from multidraft.models.norms import MAX_TOKENS, add_and_normalise, can_normalise, normalise
from multidraft.models.passes import packed, replacements_of
from multidraft.models.replacements import Norm

ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 0.0}  # sums are rounded in another order, and then to bfloat16


def norm(kind: type[nn.Module], dtype: torch.dtype) -> nn.Sequential:
    """A model of one norm, whose weight is not one."""
    module = kind(72, eps=1e-3).to(dtype).requires_grad_(False)
    module.weight.copy_(torch.rand(72, generator=torch.Generator().manual_seed(1)) + 0.5)
    return nn.Sequential(module)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("shape", [(2, 1, 72), (2, 5, 72), (3, 72), (MAX_TOKENS + 1, 72)])
def test_as_transformers(dtype: torch.dtype, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = norm(LlamaRMSNorm, dtype), list[int]()
    inputs = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    plainly = replacements.normalise
    with torch.inference_mode(), packed(model):
        monkeypatch.setattr(replacements, "normalise", lambda *arguments: calls.append(1) or plainly(*arguments))
        outputs = model(inputs)
        scattered = model(inputs.transpose(0, -1).contiguous().transpose(0, -1))
    assert len(calls) == (2 if inputs.numel() <= MAX_TOKENS * 72 else 0)
    for result in (outputs, scattered):
        torch.testing.assert_close(result, model(inputs), atol=ROUNDING[dtype], rtol=ROUNDING[dtype])
    assert "forward" not in model[0].__dict__


def test_other_norms_stay_as_they_are() -> None:
    """Gemma adds one to the weight; a loop that took it for Llama's would be caught by the sample."""
    assert replacements_of(norm(GemmaRMSNorm, torch.bfloat16), (Norm,)) == []
    assert replacements_of(nn.Sequential(nn.LayerNorm(72)), (Norm,)) == []
    assert replacements_of(norm(LlamaRMSNorm, torch.float64), (Norm,)) == []
    assert len(replacements_of(norm(LlamaRMSNorm, torch.bfloat16), (Norm,))) == 1


def test_a_changed_weight_is_seen() -> None:
    model, inputs = norm(LlamaRMSNorm, torch.float32), torch.randn(4, 72)
    with torch.inference_mode(), packed(model):
        before = model(inputs)
    model[0].weight.mul_(2)
    with torch.inference_mode(), packed(model):
        torch.testing.assert_close(model(inputs), 2 * before)


def test_numbers_of_another_kind() -> None:
    weight = torch.ones(8)
    assert can_normalise(torch.ones(3, 8), weight)
    assert not can_normalise(torch.ones(3, 8, dtype=torch.bfloat16), weight)


def test_parts_of_lines() -> None:
    lines, weight = torch.randn(3, 16, generator=torch.Generator().manual_seed(0)), torch.ones(8)
    assert torch.equal(normalise(lines[:, 8:], weight, 1e-5), normalise(lines[:, 8:].contiguous(), weight, 1e-5))


def test_models_are_read_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers have two norms each, and the model one more; with a wrong epsilon logits would differ."""
    model = tiny_model("mixtral")
    expected = CausalLM(model, 64).forward([[1, 2, 3]], [[-1, 0, 1]])
    monkeypatch.setattr(Norm, "forward", lambda norm, inputs: type(norm.module).forward(norm.module, inputs))
    torch.testing.assert_close(CausalLM(model, 64).forward([[1, 2, 3]], [[-1, 0, 1]]), expected, atol=1e-5, rtol=0)
    assert sum(isinstance(layer, Norm) for layer in passes.REPLACEMENTS_BY_MODULE[model]) == 5


@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_sum_and_its_norm(dtype: torch.dtype) -> None:
    first, second = torch.randn(2, 3, 2, 40, generator=torch.Generator().manual_seed(3)).to(dtype)
    weight = torch.rand(40, generator=torch.Generator().manual_seed(4)).to(dtype)
    total, normalised = add_and_normalise(first, second, weight, 1e-5)
    assert torch.equal(total, first + second)
    assert torch.equal(normalised, normalise(first + second, weight, 1e-5))
