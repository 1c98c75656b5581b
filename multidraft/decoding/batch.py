"""The rows of a batch: some leave, others join while it runs, and no row notices."""

import torch

from multidraft.decoding.state import State, take_over
from multidraft.errors import AdviceError
from multidraft.sampling.prefixes import Prefixes


def join(state: State, other: State) -> State:
    """The rows of `state`, then those of `other`; neither can be used any more.

    Both must have been started with the same models. A row keeps its settings, and its tokens depend on its own random
    numbers alone: they are those that it would have without the others.
    """
    if (state.draft is None) != (other.draft is None):
        raise AdviceError("one of the states has a draft model and the other has none; start both with the same models")
    take_over(state)
    take_over(other)
    if state.said is not None or other.said is not None:
        raise AdviceError(
            "a target has read its rows' last tokens; take a step, which draws from that, before rows join"
        )
    state.target.join(other.target)
    if state.draft is not None:
        state.draft.join(other.draft)
    return State(
        state.target,
        state.draft,
        state.random + other.random,
        state.roots + other.roots,
        state.positions + other.positions,
        state.unread + other.unread,
        state.sampling + other.sampling,
        prefixes_of(state) + prefixes_of(other) if state.prefixes or other.prefixes else None,
    )


def prefixes_of(state: State) -> Prefixes:
    """The sequences of rows that look back; none of the others'."""
    return state.prefixes or [None] * len(state.roots)


def select(state: State, going: list[int]) -> State:
    """The state of the rows that go on; the one before cannot be used any more."""
    take_over(state)
    rows = torch.tensor(going, dtype=torch.int64, device=state.target.device)
    for model in (state.target, state.draft):
        if model is not None and going:
            model.select(rows)
    random, unread = [state.random[i] for i in going], [state.unread[i] for i in going]
    sampling = [state.sampling[i] for i in going]
    prefixes = None if state.prefixes is None else [state.prefixes[i] for i in going]
    said = None if state.said is None else state.said[rows]
    roots, positions = [state.roots[i] for i in going], [state.positions[i] for i in going]
    return State(state.target, state.draft, random, roots, positions, unread, sampling, prefixes, said)
