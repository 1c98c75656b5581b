"""Steps where nothing is ever drafted and the target draws by itself: a token costs its pass, and little else."""

from collections.abc import Callable

from multidraft.decoding.metrics import Info
from multidraft.decoding.plain import answering, is_looked_at, numbers_of, take_coins
from multidraft.decoding.state import Emitted, Plan, State, take_over
from multidraft.models import Answering

Tell = Callable[[list[Emitted]], bool]  # what the rows have emitted; whether another step is wanted


def steady(state: State, plan: Plan) -> Answering | None:
    """The target, if it draws by itself in all steps to come."""
    may_draft = state.draft is not None or plan.shape.most_drafts
    return None if may_draft or is_looked_at(state, plan) else answering(state, plan)


def follow(target: Answering, state: State, plan: Plan, info: Info, tell: Tell) -> State:
    """Steps of such a target without a state between them, for as long as who is told of their tokens wants another."""
    take_over(state)
    last, positions, temperatures = state.roots, state.positions, [own.temperature for own in state.sampling]
    going_on = True
    while going_on:
        with info.watch.part("target"):
            last = target.answer(last, temperatures, numbers_of(state))
            take_coins(state, plan)
            target.keep_roots()
        positions = [position + 1 for position in positions]
        info.add_plain(plan, len(last))
        going_on = tell([Emitted([token], ["bonus"]) for token in last])
    return State(state.target, None, state.random, last, positions, state.unread, state.sampling)
