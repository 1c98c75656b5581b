"""Top-k, top-p and min-p on a CPU: all but a few tokens are left out before anything is computed of them.

The k largest scores are at least as large as the k-th largest maximum of blocks, and few scores are. `distributions`
in from_logits.py does the same by tensor operations, which go over the vocabulary a dozen times.
"""

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from multidraft.verification.loops import compile_loop, lines, total_weight

TOP_P_HEAD = 1024  # so many tokens nearly always hold top-p
BLOCKS_PER_TOKEN = 2  # more blocks than tokens that are wanted, so that few have two of them


def truncated_lines(
    scores: Float32[Tensor, "rows vocabulary"],
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float,
) -> tuple[Float32[Tensor, "rows vocabulary"], list[int], list[int]]:
    """Every row's distribution after temperature, top-k, top-p and then min-p, and the rows that have none.

    Then the rows whose values are missing: without top-k more than the likeliest `TOP_P_HEAD` tokens may be left there.
    """
    values = lines(scores)
    count = min(top_k or TOP_P_HEAD, values.shape[1])
    size = max(values.shape[1] // (BLOCKS_PER_TOKEN * count), 1)
    maxima = np.maximum.reduceat(values, range(0, values.shape[1], size), -1)
    largest = maxima.max(-1)
    bad_rows, wide_rows = np.flatnonzero(~np.isfinite(largest)).tolist(), list[int]()
    probs = np.zeros_like(values)
    for row in set(range(len(values))).difference(bad_rows):
        head = head_of(values[row], maxima[row], size, count)
        weights = np.exp((values[row, head].astype(np.float64) - largest[row]) / temperature)
        is_whole = top_k is not None or weights.min() < min_p or len(weights) == values.shape[1]
        if top_p is not None:
            total = weights.sum() if top_k else total_weight(values[row], largest[row], temperature)
            is_whole = cut_to_nucleus(weights, top_p * total)
        if not is_whole:
            wide_rows.append(row)
            continue
        weights[weights < min_p] = 0.0
        probs[row, head] = weights / weights.sum()
    return torch.from_numpy(probs), bad_rows, wide_rows


@compile_loop
def head_of(values, maxima, size, count):
    """The places of the `count` largest values, and of those equal to the last, in ascending order."""
    lowest = np.partition(maxima, maxima.size - count)[maxima.size - count]
    num_places = 0
    for block in range(maxima.size):
        if maxima[block] >= lowest:
            num_places += (values[block * size : (block + 1) * size] >= lowest).sum()
    places, found = np.empty(num_places, np.int64), 0
    for block in range(maxima.size):
        if maxima[block] >= lowest:
            for place in range(block * size, min((block + 1) * size, values.size)):
                if values[place] >= lowest:
                    places[found] = place
                    found += 1
    last = np.partition(values[places], num_places - count)[num_places - count]
    return places[values[places] >= last]


@compile_loop
def cut_to_nucleus(weights, wanted):
    """Set to zero all but the largest weights that hold so much, of equal ones the first; whether these hold it."""
    held, least, taken = 0.0, 0.0, 0
    for weight in -np.sort(-weights):
        if held >= wanted and taken > 0:
            break
        held, taken, least = held + weight, taken + 1, weight
    surplus = (weights >= least).sum() - taken
    for place in range(weights.size):
        if weights[place] < least or (weights[place] == least and surplus > 0):
            surplus -= weights[place] == least
            weights[place] = 0.0
    return held >= wanted
