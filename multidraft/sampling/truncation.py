"""Top-k, top-p and min-p on a CPU: all but a few tokens are left out before anything is computed of them.

The k largest scores are at least as large as the k-th largest maximum of blocks, and few scores are. `distributions`
in from_logits.py does the same by tensor operations, which go over the vocabulary a dozen times.
"""

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int
from torch import Tensor

from multidraft.verification.loops import lines, total_weight

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
    is_finite, wide_rows, probs = np.isfinite(largest), list[int](), np.zeros_like(values)
    for row in np.flatnonzero(is_finite).tolist():
        head = head_of(values[row], maxima[row], count)
        weights = np.exp((values[row, head].astype(np.float64) - largest[row]) / temperature)
        is_whole = top_k is not None or weights.min() < min_p or len(weights) == values.shape[1]
        if top_p is not None:
            total = weights.sum() if top_k else total_weight(values[row], float(largest[row]), temperature)
            weights, is_whole = nucleus_of(weights, top_p * total)
        if not is_whole:
            wide_rows.append(row)
            continue
        weights[weights < min_p] = 0.0
        probs[row, head] = weights / weights.sum()
    return torch.from_numpy(probs), np.flatnonzero(~is_finite).tolist(), wide_rows


def head_of(
    values: Float32[np.ndarray, " vocabulary"], maxima: Float32[np.ndarray, " blocks"], count: int
) -> Int[np.ndarray, " head"]:
    """The places of the `count` largest values, and of those equal to the last, in ascending order."""
    places = np.flatnonzero(values >= np.partition(maxima, -count)[-count])
    head = values[places]
    return places[head >= np.partition(head, -count)[-count]]


def nucleus_of(weights: Float64[np.ndarray, " head"], wanted: float) -> tuple[Float64[np.ndarray, " head"], bool]:
    """The largest weights until they hold so much, of equal ones the last, and zeros; and whether they hold it."""
    ordered = -np.sort(-weights)
    held = ordered.cumsum()
    taken = 1 + int((held[:-1] < wanted).sum())
    is_taken = weights >= ordered[taken - 1]
    surplus = np.flatnonzero(weights == ordered[taken - 1])[: is_taken.sum() - taken]
    is_taken[surplus] = False
    return np.where(is_taken, weights, 0.0), bool(held[taken - 1] >= wanted)
