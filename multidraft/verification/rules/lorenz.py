"""The Lorenz rule: optimal verification of i.i.d. drafts, exactly, by one sort, prefix sums and one root per token.

Beside the draws there may be sure tokens and top-ups (`Staged`). Then three rules follow each other, each with the
target that the last one hands on, which is the same for every tuple: the draws by their schedule, the top-ups by
single-draft coupling, and a sample of what remains, accepted if it is a sure token. Without top-ups that is optimal:
p(sure) + alpha*(p, q', draws), with q' the draft without the sure tokens. With one draw the schedule is a coupling:
this is the rule of the greedy law (Towards Optimal MDSD, Theorem 7), of SpecHub, and, where nothing may be drafted, of
Randomised Drafting.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from multidraft.verification import loops
from multidraft.verification.law import Staged, at_each
from multidraft.verification.laws.iid import optimal_iid
from multidraft.verification.outcome import Outcome
from multidraft.verification.precision import Rates, Rows, Tuples, next_target
from multidraft.verification.rules import lorenz_loops
from multidraft.verification.rules.lorenz_schedule import schedule
from multidraft.verification.rules.naive import naive
from multidraft.verification.rules.recursive_rejection import acceptance, couple, remainder

ScheduleOf = Callable[[Tensor, Tensor, Tensor, float], Any]  # as `schedule`: what has `accept` and `remainder`
RowVerdicts = tuple[Tensor, Tensor]  # what each draw is accepted with, and the next target once all are rejected


def lorenz(target: Rows, draft: Rows, drafted: Tuples, law: Staged) -> Outcome:
    """Optimal for i.i.d. drafts: accepts with probability alpha* = P_K + min(0, min_k F(Q_k) - P_k).

    Empty positions count as never drawn, so the number of drafts may differ between rows as long as it was fixed
    before the tokens were drawn. Where nothing may be drafted, F(t) = a (1 - (1 - t)^n).
    """
    if loops.usable(target, draft, drafted):
        return lorenz_loops.lorenz(target, draft, drafted, law)
    return in_three_stages(target, draft, drafted, law, schedule)


def in_three_stages(target: Rows, draft: Rows, drafted: Tuples, law: Staged, schedule_of: ScheduleOf) -> Outcome:
    """The draws by schedules of one kind or another, then the top-ups, then the sure tokens."""
    (deterministic, draws, top_ups), a = law.parts(drafted), law.draft_probability
    known_deterministic = deterministic if a == 1 else law.deterministic_tokens(draft)
    count = (draws >= 0).sum(-1) if a == 1 else law.drafts - (known_deterministic >= 0).sum(-1)
    of_draws, new_target = verify_draws(
        target, law.without_deterministic(draft, known_deterministic), draws, count, a, schedule_of
    )
    alive = (1 - of_draws.sum(-1)).clamp(min=0)
    of_top_ups = torch.zeros_like(top_ups, dtype=torch.float64)
    for j in range(int((top_ups >= 0).sum(-1).max()) if top_ups.numel() else 0):
        conditional = law.conditional(draft, drafted[..., : drafted.shape[-1] - top_ups.shape[-1] + j]).double()
        b, new_target = couple(new_target, conditional, top_ups[..., j])
        of_top_ups[..., j] = alive * b
        alive = alive * (1 - b)
    last = naive(alive[..., None] * new_target, draft, deterministic, law)
    accept = torch.cat([last.accept, of_draws, of_top_ups], -1)
    return Outcome(accept.to(target.dtype), last.residual.to(target.dtype), drafted)


def verify_draws(
    target: Rows, draft: Rows, draws: Tuples, count: Int[Tensor, "*batch"], a: float, schedule_of: ScheduleOf = schedule
) -> RowVerdicts:
    """Verify `count` i.i.d. draws from `draft`, each row by itself: one at most by a coupling, more by a schedule."""
    single, p = count <= 1, target.double()
    coupled: RowVerdicts | None = None
    if single.any():
        draft_probs = (draft * (count > 0)[..., None]).double() * a
        accept = acceptance(p, draft_probs, draws.amax(-1))
        coupled = accept[..., None] * (draws >= 0), next_target(remainder(p, draft_probs), p)
        if single.all():
            return coupled
    plan = schedule_of(target, draft, count, a)
    scheduled = plan.accept(draws), next_target(plan.remainder(), p)
    if coupled is None:
        return scheduled
    accept, new_target = (torch.where(single[..., None], *pair) for pair in zip(coupled, scheduled, strict=True))
    return accept, new_target


def spechub(target: Rows, draft: Rows, drafted: Tuples, law: Staged) -> Outcome:
    """SpecHub's pairs hold the top token and one other, which has the law q', so the same rule is optimal for them."""
    is_last = (drafted != law.deterministic_tokens(draft)) & (drafted >= 0)
    order = is_last.to(torch.uint8).argsort(dim=-1, stable=True)  # the top token first
    outcome = lorenz(target, draft, drafted.gather(-1, order), law)
    return Outcome(torch.empty_like(outcome.accept).scatter_(-1, order, outcome.accept), outcome.residual, drafted)


def rate_of_lorenz(target: Rows, draft: Rows, law: Staged) -> Rates | None:
    """The rate alpha + (a - alpha) t(sure), where alpha is that of the draws, and t what they hand on; if a = 1

        alpha*(p, q', draws) + p(sure).

    None with top-ups.
    """
    if law.tops_up:
        return None
    deterministic, a = law.deterministic_tokens(draft), law.draft_probability
    drawn_from, count = law.without_deterministic(draft, deterministic), law.drafts - (deterministic >= 0).sum(-1)
    rate = optimal_iid(target, drawn_from, count, a)
    if not deterministic.numel():
        return rate
    nothing = torch.full_like(count, -1)[..., None]
    _, left = verify_draws(target, drawn_from, nothing, count, a)
    return rate + (a - rate).clamp(min=0) * at_each(left, deterministic).sum(-1).to(target.dtype)
