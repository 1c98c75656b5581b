"""Drawing from distributions as compiled loops, for CPUs."""

import math

import numpy as np
from jaxtyping import Float
from torch import Tensor

from multidraft.verification.loops import compiled, lines, sum_of
from multidraft.verification.precision import BELOW_ONE

LEAST = np.float32(-126)  # of the powers of two that float32 has in full precision
HALF = np.float32(0.5)
ONE, A, B, C, D, E, F = (np.float32(math.log(2) ** n / math.factorial(n)) for n in range(7))
BLOCK = 256  # tokens whose sum is taken before it is known that the draw falls among them


def pick_each(weights: Float[Tensor, "rows vocabulary"], numbers: list[float]) -> list[int]:
    """The token that each row's number draws from its weights."""
    tokens, drawn = np.full((len(numbers), 1), -1), np.array(numbers)[:, None]
    for each in zip(tokens, lines(weights), drawn, strict=True):
        pick_into(*each)
    return tokens[:, 0].tolist()


@compiled
def soften(weights, logits, largest, scale):
    """Two to the power of what logits are above the largest, times a scale."""
    powers = np.empty(logits.size, np.int32)
    for index in range(logits.size):
        exponent = (logits[index] - largest) * scale
        whole = np.floor(max(exponent, LEAST) + HALF)
        powers[index] = (np.int32(whole) + np.int32(127)) << np.int32(23)  # the bits of that power, as a float32
        weights[index] = two_to(exponent - whole) if exponent >= LEAST else np.float32(0)
    weights *= powers.view(np.float32)


@compiled
def two_to(part):
    """Two to a power between -1/2 and 1/2, by its series, which goes into vector instructions."""
    return ONE + part * (A + part * (B + part * (C + part * (D + part * (E + part * F)))))


@compiled
def pick_into(tokens, weights, uniform):
    """For each number the first token whose cumulative weight exceeds that part of the sum; none without any weight."""
    sums, total = np.empty(-(-weights.size // BLOCK)), 0.0
    for block in range(sums.size):
        sums[block] = sum_of(weights[block * BLOCK : (block + 1) * BLOCK])
        total += sums[block]
    for draw in range(uniform.size if total > 0 else 0):
        tokens[draw] = token_at(weights, sums, min(uniform[draw], BELOW_ONE) * total)


@compiled
def token_at(weights, sums, point):
    """The first token whose cumulative weight exceeds a point below the total, or else the last with any weight."""
    passed, block = 0.0, 0
    while block < sums.size and passed + sums[block] <= point:
        passed, block = passed + sums[block], block + 1
    for token in range(block * BLOCK, weights.size):
        passed += weights[token]
        if weights[token] > 0 and passed > point:
            return token
    token = weights.size - 1  # a subnormal total may be the point
    while weights[token] <= 0:
        token -= 1
    return token
