"""Rows that come while others run: two states become one batch, and no row notices."""

import torch

from multidraft.decoding import State, claim
from multidraft.errors import AdviceError


def join(state: State, other: State) -> State:
    """The rows of `state`, then those of `other`; neither can be used any more.

    Both must have been started with the same models. A row's tokens depend on its own random numbers alone: they are
    those that it would have without the others.
    """
    if (state.draft is None) != (other.draft is None):
        raise AdviceError("one of the states has a draft model and the other has none; start both with the same models")
    if state.prefixes is not None or other.prefixes is not None:
        raise AdviceError("a row whose settings look back (penalties, for one) cannot join others; run it by itself")
    claim(state)
    claim(other)
    state.target.join(other.target)
    if state.draft is not None:
        state.draft.join(other.draft)
    return State(
        state.target,
        state.draft,
        state.random + other.random,
        torch.cat([state.root, other.root]),
        torch.cat([state.position, other.position]),
        state.missing + other.missing,
    )
