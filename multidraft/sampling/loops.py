"""Softmax, and the likeliest tokens of a line of scores, as compiled loops for CPUs."""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.verification.loops import compiled, lines, soften, sum_of

STEPS, BINS = 8, 256  # of a logarithm's unit, and how many of them: what lies below has no weight
Found = list[tuple[np.ndarray, np.ndarray]]  # by line some columns, and their weights


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


def likeliest(scores: Float[Tensor, "lines columns"], temperature: float, most: int, tail: float) -> Found:
    """As `drafting.likeliest`."""
    values = lines(scores)
    largest, scale = values.max(-1), values.dtype.type(STEPS / temperature)
    places, depths, counts = likeliest_lines(values, largest, scale, most, tail)
    found = zip(places, depths, counts.tolist(), strict=True)
    return [(columns[:count], np.exp(own[:count])) for columns, own, count in found]  # NumPy's has vector instructions


@compiled
def likeliest_lines(values, largest, scale, most, tail):
    """Every line's likeliest columns, the logarithms of their weights, and how many they are."""
    size = min(most, values.shape[1])
    places, logs = np.empty((len(values), size), np.int64), np.empty((len(values), size))
    found, steps = np.zeros(len(values), np.int64), np.empty(values.shape[1], np.int16)
    for row in range(len(values)):
        if np.isfinite(largest[row]):
            steps_of(steps, values[row], largest[row], scale)
            counts = counts_of(steps)
            last, room = cut(counts, most, tail)
            lowest, ties = edge(values[row], steps, last, room, counts[last])
            found[row] = take(places[row], values[row], steps, last, lowest, ties)
            for place in range(found[row]):
                depth = (largest[row] - values[row, places[row, place]]) * scale
                logs[row, place] = -np.float64(depth) / STEPS
    return places, logs, found


@compiled
def steps_of(steps, values, largest, scale):
    """How many steps each score is below the largest; the last number stands for more, too."""
    for column in range(values.size):  # which is compiled into vector instructions
        steps[column] = np.int16(min((largest - values[column]) * scale, values.dtype.type(BINS)))


@compiled
def counts_of(steps):
    """How many scores there are in every step; four tables, because a count that is written can be read late."""
    counts = np.zeros((4, BINS + 1), np.int64)
    for column in range(steps.size):
        counts[column & 3, steps[column]] += 1
    return counts.sum(0)[:BINS]


@compiled
def cut(counts, most, tail):
    """The last step that counts, and how many columns of it there is room for."""
    spare, last, taken = 0.0, counts.size - 1, 0
    for step in range(counts.size):  # its columns weigh less than its upper edge, not than its lower
        spare += tail * counts[step] * math.exp(-(step + 1) / STEPS)
    while last > 0 and counts[last] * math.exp(-last / STEPS) <= spare:
        spare -= counts[last] * math.exp(-last / STEPS)
        last -= 1
    for step in range(last):
        if taken + counts[step] >= most:
            return step, most - taken
        taken += counts[step]
    return last, min(most - taken, counts[last])


@compiled
def edge(values, steps, last, room, there):
    """The lowest score that is taken of the last step, and how many of those that equal it."""
    if room == there:
        return -np.inf, 0
    inside, found = np.empty(there), 0
    for column in range(values.size):
        if steps[column] == last:
            inside[found] = values[column]
            found += 1
    inside.sort()
    lowest = inside[there - room]
    return lowest, room - (inside > lowest).sum()


@compiled
def take(places, values, steps, last, lowest, ties):
    """Fill in the columns above the last step, and of those in it what is taken; how many they are."""
    found = 0
    for column in range(values.size):
        if steps[column] <= last:
            equal = steps[column] == last and values[column] == lowest
            if steps[column] < last or values[column] > lowest or (equal and ties > 0):
                places[found] = column
                found, ties = found + 1, ties - equal
    return found
