"""Making room for new slots in one compiled loop, for CPUs."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from multidraft.verification.loops import compiled


def widened(
    tokens: Int[Tensor, "batch slots"],
    alias: Int[Tensor, "batch slots"],
    sees: Bool[Tensor, "batch slots slots"],
    drafted: Int[Tensor, "batch slots width"],
    parents: Sequence[Sequence[int]],
) -> tuple[
    Int[Tensor, "batch more"], Int[Tensor, "batch more"], Bool[Tensor, "batch more more"], Int[Tensor, "batch more _"]
]:
    """As in `drafted_tree`."""
    old = [np.ascontiguousarray(part.numpy()) for part in (tokens, alias, sees, drafted)]
    tokens, alias, sees, drafted = map(torch.from_numpy, with_slots(*old, np.array(parents)))
    return tokens, alias, sees, drafted


@compiled
def with_slots(tokens, alias, sees, drafted, parents):
    """The arrays with new slots at the end."""
    batch, old = tokens.shape
    size = old + parents.shape[1]
    empty, own = np.full((batch, size), -1), np.empty((batch, size), np.int64)
    wide, undrawn = np.zeros((batch, size, size), np.bool_), np.full((batch, size, drafted.shape[2]), -1)
    for row in range(batch):
        empty[row, :old], own[row, :old], undrawn[row, :old] = tokens[row], alias[row], drafted[row]
        wide[row, :old, :old] = sees[row]
        for slot in range(old, size):
            if parents[row, slot - old] >= 0:
                wide[row, slot] = wide[row, parents[row, slot - old]]
            own[row, slot], wide[row, slot, slot] = slot, True
    return empty, own, wide, undrawn
