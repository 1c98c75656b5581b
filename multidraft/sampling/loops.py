"""Softmax as a compiled loop, for CPUs."""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.verification.distribution_loops import soften
from multidraft.verification.loops import compiled, lines, sum_of


def soft_lines(
    scores: Float[Tensor, "lines vocabulary"], temperature: float
) -> tuple[Float[Tensor, "lines vocabulary"], list[int]]:
    """As `gate.soft_lines`."""
    values = lines(scores)
    largest = values.max(-1)
    weights = soften_lines(values, largest, np.float32(1 / math.log(2) / temperature))
    return torch.from_numpy(weights), np.flatnonzero(~np.isfinite(largest)).tolist()


@compiled
def soften_lines(values, largest, scale):
    """Powers of two over their sum, of what the scores of every line are above the largest, times a scale."""
    weights = np.empty_like(values)
    for row in range(len(values)):
        soften(weights[row], values[row], largest[row], scale)
        weights[row] /= np.float32(sum_of(weights[row]))
    return weights
