"""Softmax and the selection of the largest scores as compiled loops, for CPUs."""

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.distribution_loops import soften
from multidraft.verification.loops import compiled, lines, sum_of

BLOCK = 8  # scores that are compared at once


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


def largest(
    scores: Float[Tensor, "lines vocabulary"], count: int
) -> tuple[Int[np.ndarray, "lines count"], Float[np.ndarray, "lines count"]]:
    """As `from_logits.largest`."""
    return largest_lines(lines(scores), count)


@compiled
def largest_lines(values, count):
    """The ids and scores of the largest of every line; what is below the bar costs a comparison."""
    ids, best = np.full((len(values), count), -1), np.full((len(values), count), -np.inf, values.dtype)
    for row in range(len(values)):
        kept, known = np.empty(4 * count + BLOCK, np.int64), 0
        known = collect(values[row], kept, count, sampled_bar(values[row], count))
        if 0 <= known < count:
            known = collect(values[row], kept, count, -np.inf)
        if known < 0:
            best[row, 0] = np.nan
            continue
        scores = values[row][kept[:known]]
        order = np.argsort(-scores, kind="mergesort")  # stable: the lower id first among equals
        ids[row, :known], best[row, :known] = kept[order], scores[order]
    return ids, best


@compiled
def sampled_bar(values, count):
    """A score that a few more than `count` are above, most likely: that of a high rank among every 16th."""
    few, rank = values[::16].copy(), count // 8 + 8
    return np.partition(few, few.size - rank)[few.size - rank] if few.size > 4 * rank else values.dtype.type(-np.inf)


@compiled
def collect(values, kept, count, bar):
    """Write the ids of the `count` largest above the bar, the lower among equals; return how many, or -1 at a NaN."""
    known = 0
    for start in range(0, values.size, BLOCK):
        if start + BLOCK <= values.size and not any_above(values, start, bar):
            continue
        for index in range(start, min(start + BLOCK, values.size)):
            if np.isnan(values[index]):
                return -1
            if values[index] > bar:
                kept[known] = index
                known += 1
        if known > 4 * count:
            known, bar = shrunk(values, kept, known, count)
    return shrunk(values, kept, known, count)[0] if known > count else known


@compiled
def any_above(values, start, bar):
    """Whether a block holds a score above the bar, or NaN; compiled into vector instructions."""
    above = np.int32(0)
    for index in range(start, start + BLOCK):
        above |= np.int32(not values[index] <= bar)
    return above != 0


@compiled
def shrunk(values, kept, known, count):
    """Leave the `count` largest in `kept`, in order of their ids; return their number and the smallest of them."""
    scores = values[kept[:known]]
    bar = np.partition(scores, known - count)[known - count]
    equal, left = count - (scores > bar).sum(), 0
    for index in range(known):
        if scores[index] > bar or (scores[index] == bar and equal > 0):
            equal -= scores[index] == bar
            kept[left] = kept[index]
            left += 1
    return left, bar
