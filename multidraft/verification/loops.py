"""Compiled loops for CPUs, where a small tensor operation costs more in being called than in its arithmetic.

Where tensors may be on another device, tensor operations do the same there: a function with a compiled twin calls it
where loops are `usable` (`tests/verification/test_loops.py` compares all such pairs).
"""

import inspect
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Float32
from numba import njit
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.precision import FACTOR_BELOW_ONE

KINDS = frozenset((torch.float32, torch.float64, torch.int64, torch.bool))
MIN_EXPONENT = np.float32(-126)  # of normal float32 numbers
HALF = np.float32(0.5)
ONE, A, B, C, D, E, F = (np.float32(math.log(2) ** n / math.factorial(n)) for n in range(7))
BLOCK_LOGITS = 1024  # which stay in the nearest cache until they are summed
BLOCK_TOKENS = 256  # tokens whose sum is taken before it is known that the draw falls among them


def usable(*arguments: object) -> bool:
    """Whether loops can run over the tensors among these: on a CPU, and in a precision that Numba has."""
    return all(argument.is_cpu and argument.dtype in KINDS for argument in arguments if isinstance(argument, Tensor))


def compile_loop(function: Callable, any_order: bool = False) -> Callable:
    """The loop compiled when it is first called, and kept on disk; it may add up in `any_order`, several at a time."""
    plain = inspect.unwrap(function)  # without what checks its types in tests
    make = partial(njit, error_model="numpy", fastmath={"reassoc", "contract", "nsz"} if any_order else False)
    try:
        return make(cache=True)(plain)
    except RuntimeError:  # there is nowhere to keep it
        return make()(plain)


def lines(values: Tensor) -> np.ndarray:
    """The rows of a tensor for a loop."""
    values = values.detach() if values.requires_grad else values
    return np.ascontiguousarray(values.numpy()).reshape(-1, values.shape[-1])


def same_shape(names: str, *shapes: tuple[int, ...]) -> None:
    """Raise unless all shapes are equal: a compiled loop would read and write beyond the smaller arrays."""
    if any(shape != shapes[0] for shape in shapes):
        raise AdviceError(f"{names} have shapes {' and '.join(str(tuple(shape)) for shape in shapes)}; make them equal")


@compile_loop
def forget(weights, tokens, lowest):
    """Take tokens out of a line of weights, and all that count as nothing beside them."""
    for token in tokens:
        if token >= 0:
            weights[token] = 0.0
    for token in range(weights.size):
        if weights[token] < lowest:
            weights[token] = 0.0


@partial(compile_loop, any_order=True)
def sum_of(values):
    """The sum in float64."""
    total = 0.0
    for index in range(values.size):  # which is compiled into vector instructions; `for value in values` is not
        total += values[index]
    return total


def pick_lines(weights: Float[Tensor, "rows vocabulary"], numbers: list[float]) -> list[int]:
    """The token that each row's number draws from its weights."""
    tokens, drawn = np.full((len(numbers), 1), -1), np.array(numbers)[:, None]
    for line in zip(tokens, lines(weights), drawn, strict=True):
        pick_into(*line)
    return tokens[:, 0].tolist()


@compile_loop
def pick_into(tokens, weights, uniform):
    """For each number the first token whose cumulative weight exceeds that part of the sum; none without any weight."""
    sums, total = np.empty(-(-weights.size // BLOCK_TOKENS)), 0.0
    for block in range(sums.size):
        sums[block] = sum_of(weights[block * BLOCK_TOKENS : (block + 1) * BLOCK_TOKENS])
        total += sums[block]
    for draw in range(uniform.size if total > 0 else 0):
        tokens[draw] = token_at(weights, sums, min(uniform[draw], FACTOR_BELOW_ONE) * total)


@compile_loop
def token_at(weights, sums, point):
    """The first token whose cumulative weight exceeds a point below the total, or else the last with any weight."""
    passed, block = 0.0, 0
    while block < sums.size and passed + sums[block] <= point:
        passed, block = passed + sums[block], block + 1
    for token in range(block * BLOCK_TOKENS, weights.size):
        passed += weights[token]
        if weights[token] > 0 and passed > point:
            return token
    token = weights.size - 1  # a subnormal total may be the point
    while weights[token] <= 0:
        token -= 1
    return token


def softmax_lines(
    scores: Float32[Tensor, "rows vocabulary"], temperature: float
) -> tuple[Float32[Tensor, "rows vocabulary"], list[int]]:
    """Every row's softmax at a temperature above 0, and the rows that have none, whose values are undefined."""
    values = lines(scores)
    largest = values.max(-1)
    weights = softmax_kernel(values, largest, np.float32(1 / math.log(2) / temperature))
    return torch.from_numpy(weights), np.flatnonzero(~np.isfinite(largest)).tolist()


@compile_loop
def softmax_kernel(values, largest, scale):
    """Every line's normalised weights: two to the power of `scale` times the distance from the largest score."""
    weights, powers = np.empty_like(values), np.empty(BLOCK_LOGITS, np.int32)
    for row in range(len(values)):
        total = 0.0
        for start in range(0, values.shape[1], BLOCK_LOGITS):
            block = weights[row, start : start + BLOCK_LOGITS]
            weigh(block, values[row, start : start + BLOCK_LOGITS], largest[row], scale, powers[: block.size])
            total += sum_of(block)
        factor = np.float32(1 / total)
        for token in range(values.shape[1]):
            weights[row, token] *= factor
    return weights


def total_weight(scores: Float32[np.ndarray, " vocabulary"], largest: float, temperature: float) -> float:
    """The sum of a row's weights, of which the largest is one, at a temperature above 0."""
    return total_kernel(scores, np.float32(largest), np.float32(1 / math.log(2) / temperature))


@compile_loop
def total_kernel(scores, largest, scale):
    """The sum of a line's weights: two to the power of `scale` times the distance from the largest score."""
    weights, powers, total = np.empty(BLOCK_LOGITS, np.float32), np.empty(BLOCK_LOGITS, np.int32), 0.0
    for start in range(0, scores.size, BLOCK_LOGITS):
        block = scores[start : start + BLOCK_LOGITS]
        weigh(weights[: block.size], block, largest, scale, powers[: block.size])
        total += sum_of(weights[: block.size])
    return total


@compile_loop
def weigh(weights, logits, largest, scale, powers):
    """Fill in two to the power of `scale` times each logit's distance from the largest; `powers` is room to work in."""
    for index in range(logits.size):
        exponent = (logits[index] - largest) * scale
        integer = np.floor(max(exponent, MIN_EXPONENT) + HALF)
        powers[index] = (np.int32(integer) + np.int32(127)) << np.int32(23)  # the bits of that power as a float32
        weights[index] = two_to(exponent - integer) if exponent >= MIN_EXPONENT else np.float32(0)
    factors = powers.view(np.float32)
    for index in range(logits.size):
        weights[index] *= factors[index]


@compile_loop
def two_to(exponent):
    """Two to a power between -1/2 and 1/2, by its series, which is vectorised."""
    return ONE + exponent * (A + exponent * (B + exponent * (C + exponent * (D + exponent * (E + exponent * F)))))
