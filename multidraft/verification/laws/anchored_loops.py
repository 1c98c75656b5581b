"""Drawing by the law `anchored` as compiled loops, for CPUs."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.distribution_loops import pick_into
from multidraft.verification.laws.anchored import Anchored
from multidraft.verification.loops import compiled, forget, lines, same_shape, sum_of
from multidraft.verification.precision import TIE, least


def draw_anchored(
    draft: Float[Tensor, "*batch vocabulary"], uniform: Float[Tensor, "*batch width"], law: Anchored
) -> Int[Tensor, "*batch width"]:
    """The tuple of the law where something is drafted, row by row."""
    same_shape("draft and uniform numbers", (*draft.shape[:-1], law.width), uniform.shape)
    drafted = np.full((draft.shape[:-1].numel(), law.width), -1)
    wanted = 0 if not law.has_sure else -1 if law.anchors is None else law.anchors
    draw_lines(drafted, lines(draft), lines(uniform), law.drafts, wanted, law.top_up, least(draft.dtype))
    return torch.from_numpy(drafted).view(uniform.shape)


@compiled
def draw_lines(drafted, draft, uniform, count, wanted, top_up, lowest):
    """Anchors, draws among the other tokens, and a top-up for every duplicate among the draws, for every line."""
    for row in range(len(drafted)):
        tokens, numbers, rest = drafted[row], uniform[row], draft[row].astype(np.float64)
        found = take_anchors(rest, wanted, tokens[:count])
        if wanted != 0:
            forget(rest, tokens[:found], lowest)
        draws = tokens[count : 2 * count]
        pick_into(draws, rest, numbers[count : 2 * count - found])
        for j in range(2 * count, 2 * count + repeats(draws) if top_up else 0):
            rest = draft[row].astype(np.float64)
            forget(rest, tokens[:j], lowest)
            pick_into(tokens[j : j + 1], rest, numbers[j : j + 1])


@compiled
def repeats(tokens):
    """How many of the tokens were there before."""
    found = 0
    for j in range(tokens.size):
        found += tokens[j] >= 0 and (tokens[:j] == tokens[j]).any()
    return found


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
    """How many of the likeliest tokens are anchors, from their values and the sum of all others."""
    mass, count = unlikely, 0
    for j in range(values.size - 1, -1, -1):  # from the small end: exact even where q is nearly one-hot
        mass += values[j]
        count = count + 1 if values[j] * (drafts - j) >= TIE * mass else 0
    return count
