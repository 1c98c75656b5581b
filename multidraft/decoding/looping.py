"""The loop around the step: rows decode side by side, and leave when they are done."""

from collections.abc import Callable

from multidraft.decoding.batch import select
from multidraft.decoding.metrics import Info
from multidraft.decoding.state import Emitted, Plan, State
from multidraft.decoding.stepping import step
from multidraft.decoding.stopping import Stopping


def loop(
    state: State, plan: Plan, stopping: Stopping, stream: Callable[[int, Emitted], None], info: Info
) -> list[list[int]]:
    """Step until every row has come to its end; rows that have leave the batch."""
    done: list[list[int]] = [[] for _ in stopping.budgets]
    if plan.logprobs is not None:
        info.logprobs = [[] for _ in stopping.budgets]
    running = [row for row, budget in enumerate(stopping.budgets) if budget > 0]
    if len(running) < len(done):
        state = select(state, running)
    while running and not stopping.time_is_up():
        state, emitted = step(state, plan, info)
        going = []
        for index, (row, new) in enumerate(zip(running, emitted, strict=True)):
            new, goes_on = stopping.cut(row, done[row], new)
            done[row] += new.tokens
            info.tokens += len(new.tokens)
            if plan.logprobs is not None:
                info.logprobs[row] += new.logprobs
            stream(row, new)
            if goes_on:
                going.append(index)
        if len(going) < len(running):
            running = [running[index] for index in going]
            state = select(state, going)
    return done
