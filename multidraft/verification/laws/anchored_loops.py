"""Anchors as compiled loops, for CPUs."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.loops import compiled, lines, sum_of
from multidraft.verification.precision import TIE


def anchors_of(
    draft: Float[Tensor, "*batch vocabulary"], drafts: int, wanted: int | None = None
) -> Int[Tensor, "*batch drafts"]:
    """As `anchored.anchors_of`."""
    found = anchor_lines(lines(draft), drafts, -1 if wanted is None else wanted)
    return torch.from_numpy(found).view(*draft.shape[:-1], drafts)


@compiled
def anchor_lines(draft, drafts, wanted):
    """The anchors of each line; as many as the rule says where `wanted` is negative."""
    anchors = np.full((len(draft), drafts), -1)
    for row in range(len(draft)):
        take_anchors(draft[row].astype(np.float64), wanted, anchors[row])
    return anchors


@compiled
def take_anchors(draft, wanted, anchors):
    """Fill in the anchors of one line, which are taken out of it; how many they are."""
    most = len(anchors) if wanted < 0 else min(wanted, len(anchors))
    top, found = likeliest(draft, most)
    values = draft[top[:found]]
    draft[top[:found]] = 0.0
    count = found if wanted >= 0 else count_of(values, sum_of(draft), len(anchors))
    anchors[:count] = top[:count]
    draft[top[count:found]] = values[count:]
    return count


@compiled
def likeliest(draft, most):
    """The most likely tokens, the lower id first among equals, and how many there are of positive probability."""
    top, found, least = np.empty(most, np.int64), 0, 0.0
    for token in range(draft.size if most > 0 else 0):
        if draft[token] > least:
            found = min(found + 1, most)
            place = found - 1
            while place > 0 and draft[top[place - 1]] < draft[token]:
                top[place] = top[place - 1]
                place -= 1
            top[place] = token
            least = draft[top[most - 1]] if found == most else 0.0
    return top, found


@compiled
def count_of(values, unlikely, drafts):
    """As `anchored.count_of`, from the values of the likeliest tokens and the sum of all others."""
    mass, count = unlikely, 0
    for j in range(values.size - 1, -1, -1):  # from the small end: exact even where q is nearly one-hot
        mass += values[j]
        count = count + 1 if values[j] * (drafts - j) >= TIE * mass else 0
    return count
