"""RMS norms of few tokens on CPUs in one loop: eight operations of PyTorch take longer to call than to compute."""

from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from multidraft.models.attention import NUMBERS, array_at, narrowed, widened
from multidraft.verification.loops import compiled

MAX_TOKENS = 128  # at once; PyTorch's operations use several threads, which pays for prompts


def epsilon_of(module: nn.Module | None) -> float | None:
    """The epsilon of a norm by its name; None of any other module, and of one that something has taken over."""
    if module is None or "forward" in module.__dict__:
        return None
    weight, is_norm = module._parameters.get("weight"), type(module).__name__.endswith("RMSNorm")
    if not (is_norm or isinstance(module, nn.RMSNorm)) or weight is None:
        return None
    if weight.dtype not in NUMBERS or not weight.is_cpu or weight.is_inference():
        return None
    return getattr(module, "variance_epsilon", getattr(module, "eps", None))


def can_normalise(inputs: Tensor, weight: Float[Tensor, " width"]) -> bool:
    """Whether the loop reads these, and is faster."""
    few = inputs.numel() <= MAX_TOKENS * len(weight)
    return few and inputs.dtype == weight.dtype and inputs.is_cpu


def normalise(
    inputs: Float[Tensor, "*tokens width"], weight: Float[Tensor, " width"], epsilon: float
) -> Float[Tensor, "*tokens width"]:
    """w x / sqrt(mean(x^2) + epsilon), where the quotient is rounded before the product, as in transformers."""
    inputs, width = inputs.contiguous(), len(weight)
    outputs = torch.empty_like(inputs)
    addresses = inputs.data_ptr(), weight.data_ptr(), outputs.data_ptr()
    normalise_lines(*addresses, inputs.numel() // width, width, epsilon, NUMBERS[weight.dtype](0))
    return outputs


def add_and_normalise(
    inputs: Float[Tensor, "*tokens width"],
    added: Float[Tensor, "*tokens width"],
    weight: Float[Tensor, " width"],
    epsilon: float,
) -> tuple[Float[Tensor, "*tokens width"], Float[Tensor, "*tokens width"]]:
    """A sum, and the sum normalised."""
    sums, outputs, width = torch.empty_like(inputs), torch.empty_like(inputs), len(weight)
    count, number = inputs.numel() // width, NUMBERS[weight.dtype](0)
    addresses = [tensor.data_ptr() for tensor in (inputs, added, sums, weight, outputs)]
    add_and_normalise_lines(*addresses, count, width, epsilon, number)
    return sums, outputs


@compiled
def add_and_normalise_lines(inputs, added, sums, weight, outputs, count, width, epsilon, number):
    """The same for lines at an address."""
    first, second = array_at(inputs, number, count * width), array_at(added, number, count * width)
    total = array_at(sums, number, count * width)
    for i in range(count * width):
        total[i] = narrowed(widened(first[i]) + widened(second[i]), number)
    normalise_lines(sums, weight, outputs, count, width, epsilon, number)


@partial(compiled, any_order=True)
def normalise_lines(inputs, weight, outputs, count, width, epsilon, number):
    """The same for lines at an address."""
    sources = array_at(inputs, number, count * width).reshape((count, width))
    results = array_at(outputs, number, count * width).reshape((count, width))
    weights = array_at(weight, number, width)
    for line in range(count):
        source, result, squares = sources[line], results[line], np.float32(0)
        for i in range(width):
            squares += widened(source[i]) * widened(source[i])
        factor = np.float32(1) / np.sqrt(squares / np.float32(width) + np.float32(epsilon))
        for i in range(width):
            quotient = narrowed(widened(source[i]) * factor, number)
            result[i] = narrowed(widened(quotient) * widened(weights[i]), number)
