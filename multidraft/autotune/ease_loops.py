"""A belief updated in one compiled loop: between two passes of a model, all that NumPy has to fetch for it is slow."""

import math

import numpy as np
from jaxtyping import Float

from multidraft.autotune.ease import EASES, SURE, TEXTS
from multidraft.verification.loops import compiled


def updated(
    believed: Float[np.ndarray, " eases"], heard: Float[np.ndarray, "nodes 3"], lasting: float
) -> Float[np.ndarray, " eases"]:
    """As in `ease`."""
    return after(believed, heard, lasting, EASES, TEXTS, SURE)


@compiled
def after(believed, heard, lasting, eases, texts, sure):
    """The nodes' likelihoods at every ease, and what becomes of the belief."""
    logs = np.zeros(len(eases))
    for claimed, rate, weight in heard:
        missed = 1 - min(max(rate, 1 - sure), sure)
        for place, ease in enumerate(eases):
            likely = weight * min(1 - missed**ease, sure)
            logs[place] += claimed * math.log(likely) + (1 - claimed) * math.log1p(-likely)
    largest, whole, found = max(logs), 0.0, np.empty(len(eases))
    for place, own in enumerate(logs):
        found[place] = believed[place] * math.exp(own - largest)
        whole += found[place]
    for place, text in enumerate(texts):
        found[place] = found[place] * (lasting / whole) + (1 - lasting) * text
    return found
