"""Drafting a known tree of one row without tensors between the passes: every level is drawn in compiled loops."""

from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.decoding.branches import level
from multidraft.decoding.drafted_tree import DraftTree
from multidraft.decoding.shapes import Shape
from multidraft.decoding.state import Plan, State
from multidraft.decoding.tree import Tree
from multidraft.models import Answering
from multidraft.sampling.from_logits import drafting
from multidraft.verification.distributions import tempered
from multidraft.verification.law import Law
from multidraft.verification.level_loops import draw_lines
from multidraft.verification.levels import numbers_of
from multidraft.verification.places import Drawing


def grow(state: State, plan: Plan) -> DraftTree:
    """As `growing.grow`, with all uniform numbers taken at once."""
    model, shape, own = state.draft, plan.shape, state.sampling[0].for_draft or state.sampling[0]
    assert isinstance(model, Answering)
    law, tree, most = plan.scheme.law, shape.seed(1), shape.most_drafts
    drafts, places = at_root(state, tree, law.with_drafts(most).width), places_of(law, tree)
    tokens, drafted = drafts.tokens.numpy(), drafts.drafted.numpy()
    uniform = state.random[0].uniform(1, places[-1].stop).numpy() if places else tokens
    said, drawn_from = list[np.ndarray](), list[np.ndarray]()
    for drawing, numbers in zip(tree.draws, places, strict=True):
        new = level(tree, tokens[0].tolist(), drafts.read[0], drawing.slots, state)
        said.append(model.read(new, True if said else "last"))
        drawn_from.append(drafting(said[-1], own.temperature, most))
        temper(shape, drawing, drawn_from[-1])
        draw_lines(drawing, law, drawn_from[-1], uniform[:, numbers], tokens, drafted)
        drafts.read = [drafts.read[0] + drawing.slots]
    drafts.logits, drafts.levels = ([torch.from_numpy(each)[None] for each in lines] for lines in (said, drawn_from))
    return drafts


def temper(shape: Shape, drawing: Drawing, draft: Float[np.ndarray, "group vocabulary"]) -> None:
    """As `DraftTree.temper`, for all numbers of drafts."""
    for count in set(drawing.counts):
        if (power := shape.temper(count)) != 1:
            places = [place for place, own in enumerate(drawing.counts) if own == count]
            draft[places] = tempered(torch.from_numpy(draft[places]), power).numpy()


def at_root(state: State, tree: Tree, width: int) -> DraftTree:
    """As `DraftTree.at_root`, of one row."""
    tokens, drafted = np.full((1, len(tree)), -1), np.full((1, len(tree), width), -1)
    tokens[0, 0] = state.roots[0]
    own = torch.from_numpy(tokens), same(len(tree)), tree.sees[None], torch.from_numpy(drafted)
    return DraftTree([tree], False, *own, [[]], roots=state.prefixes)


@lru_cache(64)
def same(size: int) -> Int[Tensor, "1 slots"]:
    """Every slot is a node of its own."""
    return torch.arange(size)[None]


@lru_cache(64)
def places_of(law: Law, tree: Tree) -> list[slice]:
    """Where the uniform numbers of each level stand."""
    ends = list(accumulate((numbers_of(law, drawing.counts) for drawing in tree.draws), initial=0))
    return [slice(*each) for each in pairwise(ends)]
