"""Looking at the vocabularies of a level in one compiled loop, for CPUs."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.numerics.loops import compiled, lines


def two_largest(likely: Float[Tensor, "nodes vocabulary"]) -> Float[Tensor, "nodes 2"]:
    """As in `sight`."""
    return torch.from_numpy(largest_of(lines(likely)))


@compiled
def largest_of(likely):
    """The two largest numbers of every line, in one pass."""
    found = np.zeros((len(likely), 2), likely.dtype)
    for line in range(len(likely)):
        first = second = likely.dtype.type(0)
        for one in likely[line]:
            if one > second:
                if one > first:
                    first, second = one, first
                else:
                    second = one
        found[line, 0], found[line, 1] = first, second
    return found
