"""Drawing at all nodes of a tree's level at once, each with a number of drafts of its own."""

from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.machine.device import index
from multidraft.verification.law import Law
from multidraft.verification.laws.anchored import Anchored
from multidraft.verification.laws.iid import Iid
from multidraft.verification.loops import paired
from multidraft.verification.places import Drawing


@paired(
    "multidraft.verification.level_loops", lambda _, law, draft, *__: type(law) in (Anchored, Iid) and draft.ndim == 3
)
def draw_level(
    drawing: Drawing,
    law: Law,
    draft: Float[Tensor, "rows nodes *drafters vocabulary"],
    uniform: Float[Tensor, "rows numbers"],
    tokens: Int[Tensor, "rows slots"],
    drafted: Int[Tensor, "rows slots width"],
) -> None:
    """Draw at every slot by the law with its number of drafts, and note the tuples and the children's tokens.

    The slots' uniform numbers stand one after another. Several drafters take turns.
    """
    groups = groups_of(law, drawing.counts)
    tuples = torch.full((*draft.shape[:2], max(own.width for own, _, _ in groups)), -1, device=draft.device)
    for own, nodes, numbers in groups:
        here, these = index(tuple(nodes), draft.device), index(tuple(numbers), draft.device)
        turns = by_turns(draft[:, here], own.drafts, 2)
        tuples[:, here, : own.width] = own.draw(turns, uniform[:, these].reshape(len(draft), -1, own.numbers))
    note(drawing, law, tuples, tokens, drafted)


def note(
    drawing: Drawing,
    law: Law,
    tuples: Int[Tensor, "rows nodes width"],
    tokens: Int[Tensor, "rows slots"],
    drafted: Int[Tensor, "rows slots widest"],
) -> None:
    """Note tuples that were drawn, shorter ones filled up with -1, and their tokens as children of their slots.

    Nothing is drawn at an empty slot below the root.
    """
    device = tokens.device
    slots = index(tuple(drawing.slots), device)
    if drawing.slots != [0]:
        tuples = tuples.masked_fill(tokens[:, slots, None] < 0, -1)
    drafted[:, slots, : tuples.shape[-1]] = tuples
    for own, nodes, _ in groups_of(law, drawing.counts):
        children = [drawing.first[node] + rank for node in nodes for rank in range(own.drafts)]
        drawn = tuples[:, index(tuple(nodes), device), : own.width]
        tokens[:, index(tuple(children), device)] = own.children(drawn).flatten(1)


@lru_cache(1024)  # trees that grow take many forms
def groups_of(law: Law, counts: tuple[int, ...]) -> list[tuple[Law, list[int], list[int]]]:
    """The laws with these numbers of drafts, for each its nodes and where their uniform numbers stand."""
    laws, groups, start = [law.with_drafts(count) for count in counts], dict[Law, tuple[list[int], list[int]]](), 0
    for node, own in enumerate(laws):
        nodes, numbers = groups.setdefault(own, ([], []))
        nodes.append(node)
        numbers += range(start, start := start + own.numbers)
    return [(own, *places) for own, places in groups.items()]


@lru_cache(1024)
def numbers_of(law: Law, counts: tuple[int, ...]) -> int:
    """How many uniform numbers a level takes in each row."""
    return sum(len(numbers) for _, _, numbers in groups_of(law, counts))


def by_turns(draft: Tensor, count: int, dimension: int) -> Tensor:
    """A distribution a draft where there are several drafters (one dimension more), which take turns."""
    if draft.ndim == dimension + 1:
        return draft
    turns = [j % draft.shape[dimension] for j in range(count)]
    return draft.index_select(dimension, torch.tensor(turns, device=draft.device))
