"""The loops between the products of a decoder layer: queries and keys turn, and gates let through.

Numbers are rounded where transformers rounds them.
"""

from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.models.attention import LOG2_E, NUMBERS, array_at, narrowed, power_of_two, widened
from multidraft.verification.loops import compiled


def rotate(
    parts: Float[Tensor, "rows new heads width"],
    count: int,
    cosines: Float[Tensor, "rows new width"],
    sines: Float[Tensor, "rows new width"],
) -> None:
    """Turn the first heads of each token by its position, in place."""
    rows, new, heads, width = parts.shape
    cosines, sines = cosines.contiguous(), sines.contiguous()
    addresses = parts.data_ptr(), cosines.data_ptr(), sines.data_ptr()
    rotate_heads(*addresses, rows * new, heads, count, width, NUMBERS[parts.dtype](0))


@partial(compiled, any_order=True)
def rotate_heads(parts, cosines, sines, tokens, heads, count, width, number):
    """The same for numbers at an address."""
    lines = array_at(parts, number, tokens * heads * width).reshape((tokens, heads, 2, width // 2))
    turns = array_at(cosines, number, tokens * width).reshape((tokens, 2, width // 2))
    slopes = array_at(sines, number, tokens * width).reshape((tokens, 2, width // 2))
    for token in range(tokens):
        for head in range(count):
            first, second = lines[token, head, 0], lines[token, head, 1]
            for i in range(width // 2):
                x, y = widened(first[i]), widened(second[i])
                first[i] = turned(x, -y, turns[token, 0, i], slopes[token, 0, i], number)
                second[i] = turned(y, x, turns[token, 1, i], slopes[token, 1, i], number)


def angles(
    positions: Int[Tensor, "rows new"], frequencies: Float[Tensor, " half"], scale: float
) -> tuple[Float[Tensor, "rows new width"], Float[Tensor, "rows new width"]]:
    """Cosines and sines of positions times frequencies, scaled; each twice, for both halves of a vector."""
    positions, half = positions.contiguous(), len(frequencies)
    cosines, sines = torch.empty(2, *positions.shape, 2 * half).unbind()
    addresses = [tensor.data_ptr() for tensor in (positions, frequencies, cosines, sines)]
    fill_angles(*addresses, positions.numel(), half, np.float32(scale))
    return cosines, sines


@compiled
def fill_angles(positions, frequencies, cosines, sines, tokens, half, scale):
    """The same for numbers at an address."""
    places, factors = array_at(positions, np.int64(0), tokens), array_at(frequencies, np.float32(0), half)
    turns = array_at(cosines, np.float32(0), 2 * tokens * half).reshape((tokens, 2, half))
    slopes = array_at(sines, np.float32(0), 2 * tokens * half).reshape((tokens, 2, half))
    for token in range(tokens):
        for i in range(half):
            angle = np.float32(places[token]) * factors[i]
            turns[token, :, i], slopes[token, :, i] = np.cos(angle) * scale, np.sin(angle) * scale


@compiled
def turned(along, across, cosine, sine, number):
    """One number of a turned vector, rounded as transformers does."""
    kept = widened(narrowed(along * widened(cosine), number))
    return narrowed(kept + widened(narrowed(across * widened(sine), number)), number)


def let_through(gates: Float[Tensor, "rows new columns"]) -> Float[Tensor, "rows new wide"]:
    """silu(g) u, for gates g before what they let through."""
    rows, new, columns = gates.shape
    outputs = torch.empty(rows, new, columns // 2, dtype=gates.dtype)
    let_lines_through(gates.data_ptr(), outputs.data_ptr(), rows * new, columns // 2, NUMBERS[gates.dtype](0))
    return outputs


@partial(compiled, any_order=True)
def let_lines_through(gates, outputs, count, width, number):
    """The same for lines at an address."""
    sources = array_at(gates, number, 2 * count * width).reshape((count, 2, width))
    results = array_at(outputs, number, count * width).reshape((count, width))
    for line in range(count):
        gate, value, result = sources[line, 0], sources[line, 1], results[line]
        for i in range(width):
            x = widened(gate[i])
            power = power_of_two(-abs(x) * np.float32(LOG2_E))
            opened = narrowed(x * (np.float32(1) if x >= 0 else power) / (np.float32(1) + power), number)
            result[i] = narrowed(widened(opened) * widened(value[i]), number)
