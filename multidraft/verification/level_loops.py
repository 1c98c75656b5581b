"""Drawing at all nodes of a tree's level in one compiled loop, for CPUs."""

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.distribution_loops import pick_into
from multidraft.verification.law import Law
from multidraft.verification.laws.anchored import Anchored
from multidraft.verification.laws.anchored_loops import take_anchors
from multidraft.verification.laws.iid import Iid
from multidraft.verification.loops import compiled, lines, same_shape
from multidraft.verification.places import Drawing
from multidraft.verification.precision import least


def draw_level(
    drawing: Drawing,
    law: Anchored | Iid,
    draft: Float[Tensor, "rows nodes vocabulary"],
    uniform: Float[Tensor, "rows numbers"],
    tokens: Int[Tensor, "rows slots"],
    drafted: Int[Tensor, "rows slots width"],
) -> None:
    """As `levels.draw_level`."""
    layout, numbers = layout_of(law, drawing)
    same_shape("draft and the nodes that draw", draft.shape[:2], (len(uniform), len(layout)))
    same_shape("uniform numbers and those that are needed", uniform.shape[1:], (numbers,))
    same_shape("tokens and tuples", tokens.shape, drafted.shape[:2], (len(draft), tokens.shape[1]))
    draw_lines(drawing, law, lines(draft), uniform.numpy(), tokens.numpy(), drafted.numpy())


def draw_lines(
    drawing: Drawing,
    law: Law,
    draft: Float[np.ndarray, "lines vocabulary"],
    uniform: Float[np.ndarray, "rows numbers"],
    tokens: Int[np.ndarray, "rows slots"],
    drafted: Int[np.ndarray, "rows slots width"],
) -> None:
    """The same, of arrays that fit; a line of `draft` for every node of every row."""
    level = (tokens, drafted, draft, uniform, layout_of(law, drawing)[0], law.draft_probability)
    if isinstance(law, Anchored):
        anchored_tuples(*level, -1 if law.anchors is None else law.anchors, law.top_up, least_of(draft.dtype))
    else:
        independent_tuples(*level)


def least_of(dtype: np.dtype) -> float:
    """As `precision.least`."""
    return least(torch.float64 if dtype == np.float64 else torch.float32)


@lru_cache(256)  # the same for every step of a fixed tree; trees that grow have new ones, of sizes that come again
def layout_of(law: Law, drawing: Drawing) -> tuple[np.ndarray, int]:
    """By node its slot, the slot of its first child, its drafts, its tuple's positions, the numbers that it takes.

    Beside it all nodes' numbers together.
    """
    sizes, numbers = sizes_of(law, drawing.counts)
    nodes = zip(drawing.slots, drawing.first, sizes, strict=True)
    return np.array([(slot, first, *size) for slot, first, size in nodes]), numbers


@lru_cache(1024)
def sizes_of(law: Law, counts: tuple[int, ...]) -> tuple[list[tuple[int, int, int]], int]:
    """By node its drafts, its tuple's positions, and the numbers that it takes; and all nodes' numbers together."""
    laws = [law.with_drafts(count) for count in counts]
    return [(own.drafts, own.width, own.numbers) for own in laws], sum(own.numbers for own in laws)


@compiled
def independent_tuples(tokens, drafted, draft, uniform, layout, probability):
    """Tuples by the law `iid`, and their tokens, which are their children."""
    for row in range(len(tokens)):
        start = 0
        for node in range(len(layout)):
            slot, first, count, width, numbers = layout[node]
            own = uniform[row, start : start + numbers]
            if (slot == 0 or tokens[row, slot] >= 0) and (probability == 1 or own[width] < probability):
                pick_into(drafted[row, slot, :width], draft[row * len(layout) + node], own[:width])
                tokens[row, first : first + count] = drafted[row, slot, :width]
            start += numbers


@compiled
def anchored_tuples(tokens, drafted, draft, uniform, layout, probability, wanted, top_up, lowest):
    """Tuples by the law `anchored`, whose distinct tokens are their children.

    There are as many anchors as the rule says where `wanted` is negative.
    """
    for row in range(len(tokens)):
        start = 0
        for node in range(len(layout)):
            slot, first, count, width, numbers = layout[node]
            own = uniform[row, start : start + numbers]
            if (slot == 0 or tokens[row, slot] >= 0) and (probability == 1 or own[width] < probability):
                line, positions = draft[row * len(layout) + node], drafted[row, slot, :width]
                anchored_tuple(positions, line, own, count, wanted, top_up, lowest)
                distinct(tokens[row, first : first + count], positions)
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


@compiled
def distinct(children, drafted):
    """The distinct tokens of a tuple in the order in which they first came."""
    found = 0
    for token in drafted:
        if token >= 0 and not (children[:found] == token).any():
            children[found] = token
            found += 1
