"""Compiled loops for CPUs, where a small tensor operation costs more in being called than in its arithmetic.

They need Numba. Without it, and on other devices, tensor operations do the same
(`tests/numerics/test_loops.py` compares them).
"""

import inspect
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError

HAS_NUMBA = find_spec("numba") is not None
BELOW_ONE = 1 - 2.0**-52


def usable(*tensors: Tensor) -> bool:
    """Whether loops can run over these: on a CPU, with Numba, and in a precision that it has."""
    return HAS_NUMBA and all(t.device.type == "cpu" and t.dtype in (torch.float32, torch.float64) for t in tensors)


def compiled(function: Callable) -> Callable:
    """The loop compiled when it is first called, and kept on disk."""
    plain = inspect.unwrap(function)  # without what checks its types in tests
    if not HAS_NUMBA:  # it is never called then
        return plain
    from numba import njit

    try:
        return njit(cache=True, error_model="numpy")(plain)
    except RuntimeError:  # there is nowhere to keep it
        return njit(error_model="numpy")(plain)


def lines(values: Tensor) -> np.ndarray:
    """The rows of a tensor for a loop."""
    return values.detach().contiguous().view(-1, values.shape[-1]).numpy()


def same_shape(names: str, *shapes: tuple[int, ...]) -> None:
    """Raise unless all shapes are equal: a compiled loop would read and write beyond the smaller arrays."""
    if any(shape != shapes[0] for shape in shapes):
        raise AdviceError(f"{names} have shapes {' and '.join(str(tuple(shape)) for shape in shapes)}; make them equal")


@compiled
def sum_of(values):
    """The sum, one after another in float64."""
    total = 0.0
    for value in values:
        total += value
    return total


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
