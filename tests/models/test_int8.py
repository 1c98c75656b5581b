"""Layers of heads in eight bits: the products of the rounded weights, which are near enough."""

import pytest
import torch
from torch import Tensor, nn

from multidraft.models.int8 import MAX_TOKENS, Int8Layer
from multidraft.models.passes import packed


def layer(bias: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(192, 100, bias=bias))


def inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, 192, generator=torch.Generator().manual_seed(1))


def read(model: nn.Module, lines: Tensor) -> Tensor:
    with torch.inference_mode(), packed(model, (Int8Layer,)):
        return model(lines)


def rounded(model: nn.Sequential) -> Tensor:
    """The weight that is meant, in float64."""
    product = model[0].forward.__self__.product
    whole, scales = map(torch.from_numpy, (product.weights, product.scales))
    return whole.double() * scales.double()[:, None]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (8,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_rounded_weights(bias: bool, shape: tuple[int, ...], dtype: torch.dtype):
    model, lines = layer(bias).to(dtype), inputs(*shape).to(dtype)
    with torch.inference_mode(), packed(model, (Int8Layer,)):
        weight, got = rounded(model), model(lines)
    step = model[0].weight.abs().amax(1, keepdim=True).double() / 127
    assert ((weight - model[0].weight.double()).abs() <= step * 0.501).all()
    expected = lines.double() @ weight.T + (model[0].bias.double() if bias else 0)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.02)


def test_a_line_does_not_depend_on_others():
    model, lines = layer(), inputs(MAX_TOKENS)
    together = read(model, lines)
    assert all(torch.equal(read(model, lines[place : place + 1])[0], together[place]) for place in range(MAX_TOKENS))


def test_many_lines_are_multiplied_by_the_weight_as_it_is():
    model, lines = layer(), inputs(MAX_TOKENS + 1)
    torch.testing.assert_close(read(model, lines), model(lines).detach())
    assert not torch.allclose(read(model, lines[:1]), model(lines[:1]), atol=1e-5)


def test_a_row_of_zeros_and_a_changed_weight():
    model = layer()
    with torch.no_grad():
        model[0].weight[3] = 0
    assert read(model, inputs(1))[0, 3] == 0
    with torch.no_grad():
        model[0].weight[3] = 1
    assert read(model, inputs(1))[0, 3] == pytest.approx(float(inputs(1).sum()), rel=1e-4)
