"""Single-draft coupling as compiled loops, for CPUs."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.numerics.loops import compiled, same_shape
from multidraft.numerics.precision import FULL


def residual(
    target: Float[Tensor, " vocabulary"], law: Float[Tensor, " vocabulary"], weight: float, accept: float
) -> Float[Tensor, " vocabulary"]:
    """As `coupling.residual`."""
    same_shape("target and law", target.shape, law.shape)
    left = over(target.detach().numpy(), law.detach().numpy(), weight)
    left *= 1 - accept
    return torch.from_numpy(left)


@compiled
def over(target, law, weight):
    """(w t - law)_+ / (1 - sum min(w t, law)): as `precision.handed_on`."""
    left, whole, total = np.empty(target.size), 0.0, 0.0
    for token in range(target.size):
        part = weight * np.float64(target[token])
        left[token] = max(part - np.float64(law[token]), 0.0)
        whole += part
        total += left[token]
    scale_to_rejected(left, total, target, weight, whole)
    return left


@compiled
def scale_to_rejected(left, total, target, weight, whole):
    """Divide what is left of a target by missing + sum; where all of it is claimed, it is the target itself."""
    missing = 1 - whole if 1 - whole > FULL else 0.0
    if total > 0:
        rejected = missing + total
        for token in range(left.size):
            left[token] /= rejected
    elif missing == 0:
        for token in range(left.size):
            left[token] = weight * np.float64(target[token]) / whole
