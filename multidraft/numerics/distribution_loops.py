"""Drawing from distributions as compiled loops, for CPUs."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.numerics.loops import compiled, lines, same_shape, sum_of
from multidraft.numerics.precision import BELOW_ONE


def pick(
    weights: Float[Tensor, "*batch vocabulary"], uniform: Float[Tensor, "*batch draws"]
) -> Int[Tensor, "*batch draws"]:
    """As `distributions.pick`."""
    same_shape("weights and uniform numbers", weights.shape[:-1], uniform.shape[:-1])
    return torch.from_numpy(pick_lines(lines(weights), lines(uniform))).view(uniform.shape)


@compiled
def pick_lines(weights, uniform):
    """For each number the first token whose cumulative weight exceeds that part of the sum; -1 without any weight."""
    tokens = np.full(uniform.shape, -1)
    for row in range(len(weights)):
        total = sum_of(weights[row])
        for draw in range(uniform.shape[1] if total > 0 else 0):
            point, passed = min(uniform[row, draw], BELOW_ONE) * total, 0.0
            for token in range(weights.shape[1]):  # a subnormal total may be the point: then the last token is it
                if weights[row, token] > 0:
                    tokens[row, draw] = token
                    passed += weights[row, token]
                    if passed > point:
                        break
    return tokens
