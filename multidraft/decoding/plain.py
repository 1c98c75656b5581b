"""The step where nothing is drafted, on a CPU: every row's token is drawn from the target's distribution at its root.

It is what the step over trees comes to there, token for token, without trees and walks: small models spend as long on
those as on their passes.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multidraft.decoding.drafted_tree import DraftTree
from multidraft.decoding.logprobs import Logprob, listed
from multidraft.decoding.metrics import Info
from multidraft.decoding.state import Emitted, Plan, State
from multidraft.decoding.walks import walker
from multidraft.numerics.distributions import pick_each
from multidraft.numerics.waiting import waits
from multidraft.sampling.prefixes import Prefixes
from multidraft.sampling.settings import PerRow, Sampling, settings_of_rows


class Answer(NamedTuple):
    """What the target says at the roots, under these settings, and the tokens that were drawn from it."""

    logits: Float[Tensor, "rows vocabulary"]
    sampling: Sampling | PerRow
    last: list[int]


def is_looked_at(state: State, plan: Plan) -> bool:
    """Whether somebody looks at trees, or tokens are where looking at them is waiting."""
    return (plan.trace is not None and plan.trace.looks) or waits(state.root)


def is_bare(state: State, plan: Plan, drafts: DraftTree) -> bool:
    """Whether the draft model has read nothing, and nobody looks."""
    return not drafts.levels and not is_looked_at(state, plan)


def answered(state: State, plan: Plan, info: Info) -> Answer:
    """The target's answers: of a pass over the roots, unless the one over the prompts has brought them."""
    sampling, (sees, _) = settings_of_rows(state.sampling), alone(len(state.random))
    with info.watch.part("target"):
        if (said := state.said) is None:
            said = state.target.forward(state.root[:, None], state.position[:, None], sees)
    with info.watch.part("rule"):
        numbers = [random.number() for random in state.random]
        last = drawn(sampling, said[:, 0], state.prefixes, numbers)
        take_coins(state, plan)
    return Answer(said[:, 0], sampling, last)


def going_on(state: State, plan: Plan, answer: Answer, info: Info) -> tuple[State, list[Emitted]]:
    """The models keep the roots; the answers are the next ones, and one new token for every row."""
    with info.watch.part("cache"):
        if state.said is None:
            state.target.keep(alone(len(answer.last))[1])
        following = after(state, answer.last)
    if state.said is None:
        info.add_plain(plan, len(answer.last))
    if plan.logprobs is None:
        return following, [Emitted([token], ["bonus"]) for token in answer.last]
    logs = logprobs_of(answer, state.prefixes, plan.logprobs)
    return following, [Emitted([token], ["bonus"], own) for token, own in zip(answer.last, logs, strict=True)]


@lru_cache(64)
def alone(rows: int) -> tuple[Bool[Tensor, "rows 1 1"], Int[Tensor, "rows 1"]]:
    """Every row's root sees itself, and is kept."""
    return torch.ones(rows, 1, 1, dtype=torch.bool), torch.zeros(rows, 1, dtype=torch.int64)


def drawn(
    sampling: Sampling | PerRow,
    logits: Float[Tensor, "rows vocabulary"],
    prefixes: Prefixes | None,
    numbers: list[float],
) -> list[int]:
    """A token of every row, with the row's number, which is taken also where nothing depends on it."""
    if sampling.is_argmax:
        return logits.argmax(-1).tolist()
    return pick_each(sampling.target(logits, prefixes), numbers)


def take_coins(state: State, plan: Plan) -> None:
    """Walks end at their roots, but may have a coin say so."""
    walk = walker(plan.walk)
    for random in state.random:
        list(walk(0, 1.0, lambda _: False, random.coin))


def after(state: State, last: list[int]) -> State:
    """The models have read the roots, or the target alone has; what was emitted is the next root."""
    unread, prefixes, root = state.unread, state.prefixes, torch.tensor(last)
    if state.draft is not None:
        unread = [[*known, token] for known, token in zip(unread, state.root.tolist(), strict=True)]
    if prefixes is not None:
        prefixes = [prefix and prefix.then(new[None]) for prefix, new in zip(prefixes, root, strict=True)]
    position = state.position + 1
    return State(state.target, state.draft, state.random, root, position, unread, state.sampling, prefixes)


def logprobs_of(answer: Answer, prefixes: Prefixes | None, top: int) -> list[list[Logprob]]:
    """Of every row's token, and of so many of the most likely ones."""
    logs = answer.sampling.log_probabilities(answer.logits, prefixes)
    return [listed(line[None], [token], top) for line, token in zip(logs, answer.last, strict=True)]
