"""Looking at the vocabularies of a level in one compiled loop, for CPUs."""

import math

import numpy as np
from jaxtyping import Float
from torch import Tensor

from multidraft.verification.distribution_loops import soften
from multidraft.verification.loops import compiled, lines, sum_of

SCALE = np.float32(1 / math.log(2))
ONE, LEAST, MOST = np.int32(127 << 23), np.int32(-(2**31)), np.int32(2**31 - 1)  # the bits of 1.0; and integers


def looked_at(logits: Float[Tensor, "nodes vocabulary"]) -> list[list[float]]:
    """As in `sight`."""
    return look_along(lines(logits)).tolist()


@compiled
def look_along(logits):
    """The two largest probabilities of every line, and the logarithm of its sum of exponentials."""
    found, weights = np.empty((len(logits), 3)), np.empty(logits.shape[1], logits.dtype)
    for line in range(len(logits)):
        largest = largest_of(logits[line].view(np.int32))
        soften(weights, logits[line], largest, SCALE)
        total = sum_of(weights)
        found[line, 0], found[line, 1] = 1 / total, second_of(weights.view(np.int32)) / total
        found[line, 2] = largest + math.log(total)
    return found


@compiled
def largest_of(bits):
    """The largest number, by the bits: with those of negative ones turned over, integers have the order of numbers.

    Nothing branches, and vector instructions do it.
    """
    most = LEAST
    for index in range(bits.size):
        one = turned(bits[index])
        most = one if one > most else most
    return np.full(1, turned(most)).view(np.float32)[0]


@compiled
def turned(bits):
    """The bits of a number in the order of integers, and back."""
    return bits ^ ((bits >> np.int32(31)) & MOST)


@compiled
def second_of(bits):
    """The largest number but one of numbers from zero to one, of which one is the largest."""
    most, times = np.int32(0), 0
    for index in range(bits.size):
        below = bits[index] if bits[index] < ONE else np.int32(0)
        most = below if below > most else most
        times += bits[index] == ONE
    return 1.0 if times > 1 else np.full(1, most).view(np.float32)[0]
