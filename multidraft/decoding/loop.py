"""The loop around the step: rows decode side by side, and leave when they are done."""

from collections.abc import Callable

from multidraft.decoding.batch import select
from multidraft.decoding.metrics import Info
from multidraft.decoding.state import Emitted, Plan, State
from multidraft.decoding.steady import Tell, follow, steady
from multidraft.decoding.step import step
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
    going = list(range(len(running)))

    def tell(emitted: list[Emitted]) -> bool:
        """Pass on what a step has emitted up to the rows' ends; whether another one is wanted of the same rows."""
        going.clear()
        for index, (row, new) in enumerate(zip(running, emitted, strict=True)):
            new, goes_on = stopping.cut(row, done[row], new)
            done[row] += new.tokens
            info.tokens += len(new.tokens)
            if plan.logprobs is not None:
                info.logprobs[row] += new.logprobs
            stream(row, new)
            if goes_on:
                going.append(index)
        return len(going) == len(running) and not stopping.time_is_up()

    while running and not stopping.time_is_up():
        state = advance(state, plan, info, tell)
        if len(going) < len(running):
            running = [running[index] for index in going]
            state = select(state, going)
    return done


def advance(state: State, plan: Plan, info: Info, tell: Tell) -> State:
    """A step; or where no other state is needed between them, all of them that are wanted."""
    if (target := steady(state, plan)) is not None:
        return follow(target, state, plan, info, tell)
    state, emitted = step(state, plan, info)
    tell(emitted)
    return state
