"""Drawing at all nodes of a tree's level at once, each with a number of drafts of its own."""

from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.drafting.anchored import Anchored
from multidraft.drafting.iid import Iid
from multidraft.drafting.law import Law
from multidraft.numerics.loops import paired

Counts = tuple[int, ...]  # of drafts, by node


@paired("multidraft.drafting.level_loops", lambda law, *_: type(law) in (Anchored, Iid))
def draw_level(
    law: Law,
    counts: Counts,
    draft: Float[Tensor, "rows nodes *drafters vocabulary"],
    uniform: Float[Tensor, "rows numbers"],
) -> Int[Tensor, "rows nodes width"]:
    """A tuple at every node by the law with that node's number of drafts; shorter ones are filled up with -1.

    The nodes' uniform numbers stand one after another. Several drafters take turns.
    """
    groups = groups_of(law, counts)
    width = max(own.width for own, _, _ in groups)
    drafted = torch.full((*draft.shape[:2], width), -1, device=draft.device)
    for own, nodes, numbers in groups:
        turns = by_turns(draft[:, nodes], own.drafts, 2)
        drafted[:, nodes, : own.width] = own.draw(turns, uniform[:, numbers].view(len(draft), -1, own.numbers))
    return drafted


@paired("multidraft.drafting.level_loops")
def children_of_level(law: Law, counts: Counts, drafted: Int[Tensor, "rows nodes width"]) -> Int[Tensor, "rows drafts"]:
    """The tuples' tokens as children of their nodes, one node's after another's, as many as it has drafts."""
    children = torch.empty(len(drafted), sum(counts), dtype=torch.int64, device=drafted.device)
    places = torch.arange(sum(counts)).split(counts)
    for own, nodes, _ in groups_of(law, counts):
        here = torch.cat([places[node] for node in nodes])
        children[:, here] = own.children(drafted[:, nodes, : own.width]).flatten(1)
    return children


@cache
def groups_of(law: Law, counts: Counts) -> list[tuple[Law, list[int], list[int]]]:
    """The laws with these numbers of drafts, for each its nodes and where their uniform numbers stand."""
    laws, groups, start = [law.with_drafts(count) for count in counts], dict[Law, tuple[list[int], list[int]]](), 0
    for node, own in enumerate(laws):
        nodes, numbers = groups.setdefault(own, ([], []))
        nodes.append(node)
        numbers += range(start, start := start + own.numbers)
    return [(own, *places) for own, places in groups.items()]


def numbers_of(law: Law, counts: Counts) -> int:
    """How many uniform numbers a level takes in each row."""
    return sum(len(numbers) for _, _, numbers in groups_of(law, counts))


def by_turns(draft: Tensor, count: int, dimension: int) -> Tensor:
    """A distribution a draft where there are several drafters (one dimension more), which take turns."""
    if draft.ndim == dimension + 1:
        return draft
    turns = [j % draft.shape[dimension] for j in range(count)]
    return draft.index_select(dimension, torch.tensor(turns, device=draft.device))
