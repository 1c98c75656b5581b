"""Products with weights in bfloat16 by a loop: those of float32, rounded once, whatever threads there are."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from multidraft.models import bfloat16, products, torch_threads
from multidraft.models.bfloat16 import MAX_TOKENS, WideningProduct
from multidraft.models.passes import packed
from multidraft.models.replacements import Layer


def parts(width: int = 72) -> tuple[list[Tensor], list[Tensor | None]]:
    """Two weights, and a bias of the second one."""
    random = torch.Generator().manual_seed(0)
    weights = [torch.randn(count, width, generator=random).bfloat16() for count in (10, 7)]
    return weights, [None, torch.randn(7, generator=random).bfloat16()]


def reference(inputs: Tensor) -> Tensor:
    """In float64, one weight after the other."""
    weights, biases = parts()
    first, second = (inputs.double() @ weight.double().T for weight in weights)
    assert biases[1] is not None
    return torch.cat([first, second + biases[1].double()], -1)


@pytest.fixture(params=[True, False], ids=["threads", "alone"])
def with_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch's threads, or a processor whose PyTorch has other ones."""
    bfloat16.multiply_in_threads.cache_clear()
    if not request.param:
        monkeypatch.setattr(torch_threads, "team", lambda: None)
    yield
    bfloat16.multiply_in_threads.cache_clear()


@pytest.mark.usefixtures("with_threads")
@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (3, 2), (11,), (MAX_TOKENS,), (MAX_TOKENS + 1,), (2, 40)])
@pytest.mark.parametrize("threads", [1, 3])
def test_as_in_float64(shape: tuple[int, ...], threads: int) -> None:
    inputs, before = (
        torch.randn(*shape, 72, generator=torch.Generator().manual_seed(1)).bfloat16(),
        torch.get_num_threads(),
    )
    try:
        torch.set_num_threads(threads)
        outputs = WideningProduct(*parts())(inputs)
    finally:
        torch.set_num_threads(before)
    expected = reference(inputs)
    assert outputs.dtype == torch.bfloat16
    torch.testing.assert_close(outputs.double(), expected, rtol=0.004, atol=1e-4)  # half of a last place, once


def test_layers_use_it_where_onednn_has_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts too, and weights stay where they are."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(192, 128)).bfloat16()
    monkeypatch.setattr(products, "can_pack", lambda dtype: dtype != torch.bfloat16)
    inputs = torch.randn(300, 192, generator=torch.Generator().manual_seed(1)).bfloat16()
    with torch.inference_mode(), packed(model):
        layer = model[0].forward.__self__
        assert isinstance(layer, Layer)
        assert isinstance(layer.product, WideningProduct)
        assert layer.product.weights[0].data_ptr() == model[0].weight.data_ptr()
        torch.testing.assert_close(model(inputs), layer.product(inputs))
        torch.testing.assert_close(model(inputs[:5]), layer.product(inputs)[:5])
