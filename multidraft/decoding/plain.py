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
from multidraft.machine.device import is_far
from multidraft.models import Answering, LanguageModel
from multidraft.sampling.prefixes import lengthened
from multidraft.sampling.settings import PerRow, Sampling, settings_of_rows
from multidraft.verification.distributions import pick_each


class Answer(NamedTuple):
    """The tokens that were drawn at the roots, and their log-probabilities if they are asked for."""

    last: list[int]
    logprobs: list[list[Logprob]]


def is_looked_at(state: State, plan: Plan) -> bool:
    """Whether somebody looks at trees, or tokens are where looking at them is waiting."""
    return (plan.trace is not None and plan.trace.looks) or is_far(state.target.device)


def is_bare(state: State, plan: Plan, drafts: DraftTree) -> bool:
    """Whether the draft model has read nothing, and nobody looks."""
    return not drafts.levels and not is_looked_at(state, plan)


def answered(state: State, plan: Plan, info: Info) -> Answer:
    """The target's answers: of a pass over the roots, unless the one over the prompts has brought them."""
    with info.watch.part("target"):
        if (target := answering(state, plan)) is not None:
            temperatures = [own.temperature for own in state.sampling]
            last = target.answer(state.roots, temperatures, numbers_of(state))
            take_coins(state, plan)
            return Answer(last, [[]] * len(last))
        if (said := state.said) is None:
            sees, _ = alone(len(state.roots))
            said = state.target.forward(state.root[:, None], state.position[:, None], sees)
    with info.watch.part("rule"):
        answer = drawn(settings_of_rows(state.sampling), said[:, 0], state, plan.logprobs)
        take_coins(state, plan)
    return answer


def answering(state: State, plan: Plan) -> Answering | None:
    """The target, if it draws by itself all that is asked for."""
    if not isinstance(state.target, Answering) or state.said is not None or plan.logprobs is not None:
        return None
    return state.target if all(own.is_temperature for own in state.sampling) else None


def drawn(
    sampling: Sampling | PerRow, logits: Float[Tensor, "rows vocabulary"], state: State, top: int | None
) -> Answer:
    """A token of every row, and the log-probabilities of so many others."""
    numbers = numbers_of(state)
    if sampling.is_argmax:
        last = logits.argmax(-1).tolist()
    else:
        last = pick_each(sampling.target(logits, state.prefixes), numbers)
    if top is None:
        return Answer(last, [[]] * len(last))
    logs = sampling.log_probabilities(logits, state.prefixes)
    return Answer(last, [listed(line[None], [token], top) for line, token in zip(logs, last, strict=True)])


def numbers_of(state: State) -> list[float]:
    """Every row's number, which is taken also where nothing depends on it."""
    return [random.number() for random in state.random]


def going_on(state: State, plan: Plan, answer: Answer, info: Info) -> tuple[State, list[Emitted]]:
    """The models keep the roots; the answers are the next ones, and one new token for every row."""
    with info.watch.part("cache"):
        if state.said is None:
            keep_roots(state.target, len(answer.last))
        following = after(state, answer.last)
    if state.said is None:
        info.add_plain(plan, len(answer.last))
    return following, [Emitted([token], ["bonus"], logs) for token, logs in zip(*answer, strict=True)]


def keep_roots(target: LanguageModel, rows: int) -> None:
    """The target keeps what it has read."""
    if isinstance(target, Answering):
        target.keep_roots()
    else:
        target.keep(alone(rows)[1])


@lru_cache(64)
def alone(rows: int) -> tuple[Bool[Tensor, "rows 1 1"], Int[Tensor, "rows 1"]]:
    """Every row's root sees itself, and is kept."""
    return torch.ones(rows, 1, 1, dtype=torch.bool), torch.zeros(rows, 1, dtype=torch.int64)


def take_coins(state: State, plan: Plan) -> None:
    """Walks end at their roots, but may have a coin say so."""
    walk = walker(plan.walk)
    for random in state.random:
        list(walk(0, 1.0, lambda _: False, random.coin))


def after(state: State, last: list[int]) -> State:
    """The models have read the roots, or the target alone has; what was emitted is the next root."""
    unread, positions = state.unread, [position + 1 for position in state.positions]
    if state.draft is not None:
        unread = [[*known, token] for known, token in zip(unread, state.roots, strict=True)]
    following = State(state.target, state.draft, state.random, last, positions, unread, state.sampling)
    if state.prefixes is not None:
        following.prefixes = lengthened(state.prefixes, following.root)
    return following
