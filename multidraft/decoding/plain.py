"""The step where no shape drafts, on a CPU: every row's one token is drawn from the target's distribution at its root.

It is what the step over trees comes to there, token for token, without trees and walks: small models spend as long on
those as on their passes.
"""

from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multidraft.decoding.logprobs import Logprob, listed
from multidraft.decoding.metrics import Info
from multidraft.decoding.state import Emitted, Plan, State, release, take_over
from multidraft.decoding.walks import walker
from multidraft.numerics.distributions import pick_each
from multidraft.numerics.waiting import waits
from multidraft.sampling.settings import PerRow, Sampling, settings_of_rows


def is_plain(state: State, plan: Plan) -> bool:
    """Whether there is nothing to draft, and nobody who looks at trees."""
    return not plan.shape.most_drafts and plan.trace is None and not waits(state.root)


def plain_step(state: State, plan: Plan, info: Info) -> tuple[State, list[Emitted]]:
    """One target pass, unless the one over the prompt has said it all, and one new token for every row."""
    take_over(state)
    rows, sampling = len(state.random), settings_of_rows(state.sampling)
    sees, kept = alone(rows)
    try:
        with info.watch.part("target"):
            if (said := state.said) is None:
                said = state.target.forward(state.root[:, None], state.position[:, None], sees)
            logits = said[:, 0]
        with info.watch.part("rule"):
            numbers = [random.number() for random in state.random]
            last = pick_each(sampling.target(logits, state.prefixes), numbers)
            take_coins(state, plan)
    except BaseException:
        release(state)
        raise
    with info.watch.part("cache"):
        if state.said is None:
            state.target.keep(kept)
        following = after(state, last)
    if state.said is None:
        info.add_plain(plan, rows)
    if plan.logprobs is None:
        return following, [Emitted([token], ["bonus"]) for token in last]
    logs = logprobs_of(sampling, logits, state, last, plan.logprobs)
    return following, [Emitted([token], ["bonus"], own) for token, own in zip(last, logs, strict=True)]


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
    unread, prefixes, root = state.unread, state.prefixes, torch.tensor(last)
    if state.draft is not None:
        unread = [[*known, token] for known, token in zip(unread, state.root.tolist(), strict=True)]
    if prefixes is not None:
        prefixes = [prefix and prefix.then(new[None]) for prefix, new in zip(prefixes, root, strict=True)]
    position = state.position + 1
    return State(state.target, state.draft, state.random, root, position, unread, state.sampling, prefixes)


def logprobs_of(
    sampling: Sampling | PerRow, logits: Float[Tensor, "rows vocabulary"], state: State, last: list[int], top: int
) -> list[list[Logprob]]:
    """Of every row's token, and of so many of the most likely ones."""
    logs = sampling.log_probabilities(logits, state.prefixes)
    return [listed(line[None], [token], top) for line, token in zip(logs, last, strict=True)]
