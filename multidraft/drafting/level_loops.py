"""Drawing at all nodes of a tree's level in one compiled loop, for CPUs."""

from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.drafting.anchored import Anchored
from multidraft.drafting.anchored_loops import take_anchors
from multidraft.drafting.iid import Iid
from multidraft.drafting.law import Law
from multidraft.numerics.distribution_loops import pick_into
from multidraft.numerics.loops import compiled, lines, same_shape
from multidraft.numerics.precision import least


def draw_level(
    law: Anchored | Iid,
    counts: tuple[int, ...],
    draft: Float[Tensor, "rows nodes vocabulary"],
    uniform: Float[Tensor, "rows numbers"],
) -> Int[Tensor, "rows nodes width"]:
    """As `levels.draw_level`."""
    layout = layout_of(law, counts)
    same_shape("draft and the nodes that draw", draft.shape[:2], (len(uniform), len(counts)))
    same_shape("uniform numbers and those that are needed", uniform.shape[1:], (int(layout[:, 2].sum()),))
    drafted = np.full((*draft.shape[:2], int(layout[:, 1].max())), -1)
    level = (drafted, lines(draft), uniform.numpy(), layout, law.draft_probability)
    if isinstance(law, Anchored):
        anchored_tuples(*level, -1 if law.anchors is None else law.anchors, law.top_up, least(draft.dtype))
    else:
        independent_tuples(*level)
    return torch.from_numpy(drafted)


@cache
def layout_of(law: Law, counts: tuple[int, ...]) -> np.ndarray:
    """For each node its drafts, the positions of its tuple, and the uniform numbers that it takes."""
    return np.array([(own.drafts, own.width, own.numbers) for own in map(law.with_drafts, counts)])


@compiled
def independent_tuples(drafted, draft, uniform, layout, probability):
    """Tuples by the law `iid`."""
    for row in range(len(drafted)):
        start = 0
        for node in range(len(layout)):
            count, _, numbers = layout[node]
            own = uniform[row, start : start + numbers]
            if probability == 1 or own[count] < probability:
                pick_into(drafted[row, node], draft[row * len(layout) + node], own[:count])
            start += numbers


@compiled
def anchored_tuples(drafted, draft, uniform, layout, probability, wanted, top_up, lowest):
    """Tuples by the law `anchored`; as many anchors as the rule says where `wanted` is negative."""
    for row in range(len(drafted)):
        start = 0
        for node in range(len(layout)):
            count, width, numbers = layout[node]
            own = uniform[row, start : start + numbers]
            if probability == 1 or own[width] < probability:
                line = draft[row * len(layout) + node]
                anchored_tuple(drafted[row, node], line, own, count, wanted, top_up, lowest)
            start += numbers


@compiled
def anchored_tuple(drafted, draft, uniform, count, wanted, top_up, lowest):
    """Anchors, draws among the other tokens, and a top-up for every duplicate among the draws."""
    draws, number = drafted[count : 2 * count], uniform[count : 2 * count]
    if wanted == 0 or (wanted < 0 and count == 1):
        pick_into(draws, draft, number)
    else:
        rest = draft.astype(np.float64)
        found = take_anchors(rest, wanted, drafted[:count])
        if found:
            forget(rest, drafted[:found], lowest)
        pick_into(draws, rest, number[: count - found])
    for j in range(2 * count, 2 * count + repeats(draws) if top_up else 0):
        rest = draft.astype(np.float64)
        forget(rest, drafted[:j], lowest)
        pick_into(drafted[j : j + 1], rest, uniform[j : j + 1])


@compiled
def forget(draft, tokens, lowest):
    """Take out tokens, and all that count as nothing beside them."""
    for token in tokens:
        if token >= 0:
            draft[token] = 0.0
    for token in range(draft.size):
        if draft[token] < lowest:
            draft[token] = 0.0


@compiled
def repeats(tokens):
    """How many of the tokens were there before."""
    found = 0
    for j in range(tokens.size):
        found += tokens[j] >= 0 and (tokens[:j] == tokens[j]).any()
    return found


def children_of_level(
    law: Law, counts: tuple[int, ...], drafted: Int[Tensor, "rows nodes width"]
) -> Int[Tensor, "rows drafts"]:
    """As `levels.children_of_level`."""
    same_shape("tuples and the nodes that drew them", drafted.shape[1:2], (len(counts),))
    children = np.full((len(drafted), sum(counts)), -1)
    fill_children(children, drafted.contiguous().numpy(), layout_of(law, counts), law.repeats)
    return torch.from_numpy(children)


@compiled
def fill_children(children, drafted, layout, all_of_them):
    """Every node's distinct tokens in the order in which they first came, or all of them."""
    for row in range(len(drafted)):
        start = 0
        for node in range(len(layout)):
            count, width, _ = layout[node]
            own, found = children[row, start : start + count], 0
            if all_of_them:
                own[:] = drafted[row, node, :count]
            for token in drafted[row, node, : 0 if all_of_them else width]:
                if token >= 0 and not (own[:found] == token).any():
                    own[found] = token
                    found += 1
            start += count
