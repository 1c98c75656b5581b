"""Anchors as a compiled loop, for CPUs."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.numerics.loops import compiled, lines
from multidraft.numerics.precision import TIE


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
        draftable = draft[row].astype(np.float64)
        for j in range(drafts if wanted < 0 else min(wanted, drafts)):
            top = draftable.argmax()
            if draftable[top] <= 0 or (wanted < 0 and draftable[top] * (drafts - j) < TIE * draftable.sum()):
                break
            anchors[row, j], draftable[top] = top, 0.0
    return anchors
