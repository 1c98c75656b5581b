"""Draft distributions from logits as compiled loops, for CPUs."""

import math
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float

from multidraft.sampling.from_logits import ranked
from multidraft.verification.distribution_loops import soften
from multidraft.verification.loops import compiled, sum_of


def drafting(
    logits: Float[np.ndarray, "lines vocabulary"], temperature: float | int, count: int
) -> Float[np.ndarray, "lines vocabulary"]:
    """As `from_logits.drafting`."""
    if temperature == 0:
        return ranked_lines(logits, weights_of(min(count, logits.shape[-1])))
    return soft_lines(logits, logits.argmax(-1), np.float32(1 / math.log(2) / temperature))


@lru_cache(64)
def weights_of(count: int) -> Float[np.ndarray, " count"]:
    """What the most likely tokens get at temperature 0, in their order."""
    return ranked(torch.arange(count, 0, -1), count).numpy()


@compiled
def ranked_lines(logits, weights):
    """These weights for the most likely tokens of every line, the first of equals first."""
    draft, best = np.zeros_like(logits), np.empty(len(weights), np.int64)
    for row in range(len(logits)):
        known = 0
        for token in range(logits.shape[1]):
            if known < len(best):
                known += 1
            elif logits[row, token] <= logits[row, best[-1]]:
                continue
            place = known - 1
            while place > 0 and logits[row, token] > logits[row, best[place - 1]]:
                best[place] = best[place - 1]
                place -= 1
            best[place] = token
        for place, weight in enumerate(weights):
            draft[row, best[place]] = weight
    return draft


@compiled
def soft_lines(logits, likeliest, scale):
    """Powers of two over their sum, of what the logits of every line are above that of the likeliest, times a scale."""
    draft = np.empty_like(logits)
    for row in range(len(logits)):
        soften(draft[row], logits[row], logits[row, likeliest[row]], scale)
        draft[row] /= np.float32(sum_of(draft[row]))
    return draft
