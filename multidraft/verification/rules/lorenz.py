"""The Lorenz rule: optimal verification of i.i.d. drafts, exactly, by one sort, prefix sums and one root per token.

Every draft draw gets a random time in [0, 1] and the earliest one is emitted. Token i is a job with q_i of machine time
and p_i of work on a machine whose speed F'(t) falls, where F(t) is the probability that some draft falls into draft
mass t. The optimal schedule runs the jobs with the largest remaining work per remaining time and shares the machine
among ties in proportion to remaining time, so that the running jobs are a prefix of the tokens sorted by p/q; jobs
whose work would outlast their time are run out before the next one joins. The proof is in docs/theory.md; the names
below are those of that page.

It is exact for every number of drafts n, in time polynomial in n. Global Resolution solves the same problem by convex
minimisation, approximately; Partial Resolution (NeurIPS 2025) states O(2^{1.5 n} n^2 + 2^n V + V log V), which for a
fixed n is O(V log V) too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.distributions import descending
from multidraft.verification.law import Law, at_each
from multidraft.verification.laws.iid import optimal_iid
from multidraft.verification.loops import paired
from multidraft.verification.outcome import Outcome
from multidraft.verification.precision import DRAWABLE, SMALLEST_NORMAL, SPARE, next_target
from multidraft.verification.rules import coupling
from multidraft.verification.rules.roots import by_count, power, smallest_root


@dataclass(frozen=True)
class Schedule:
    """All about a node but the drafted tuple; positions count tokens sorted by p/q, largest first."""

    target: Float[Tensor, "*batch vocabulary"]
    draft: Float[Tensor, "*batch vocabulary"]
    order: Int[Tensor, "*batch vocabulary"]  # position -> token
    Q: Float[Tensor, "*batch vocabulary"]  # draft mass up to a position
    T: Float[Tensor, "*batch vocabulary"]  # when the phase of a position ends
    drop: Float[Tensor, "*batch vocabulary"]  # how far D falls below its record at a position: positive at a reset
    survive: Float[Tensor, "*batch vocabulary"]  # s: what survives of a draw after the phase of a position
    optimum: Float[Tensor, "*batch"]  # alpha*
    record: Float[Tensor, "*batch"]  # the sum of all drops: what remains of the target on tokens that can be drafted

    @cached_property
    def stages(self) -> "Stages":
        """The products of s between any two positions."""
        return Stages(self.survive)

    def remainder(self) -> Float[Tensor, "*batch vocabulary"]:
        """R = p - r, by token: nothing after the last reset, and before one a share of its drop.

        share_i = q_i * (product of s over the phases from i to the reset) / (Q_k - T_{k-1}),  sum of shares = 1.
        Tokens that are never drafted keep all of p.
        """
        size, p, q = self.Q.shape[-1], self.target.gather(-1, self.order), self.draft.gather(-1, self.order)
        place = torch.arange(size, device=p.device)
        following = torch.where(self.drop > 0, place, size).flip(-1).cummin(-1).values.flip(-1)
        k = following.clamp(max=size - 1)
        width = (self.Q - shifted(self.T)).gather(-1, k).clamp(min=SMALLEST_NORMAL)
        share = q * self.stages.between(place.expand_as(k), k) / width
        loss = torch.minimum(self.drop.gather(-1, k) * share, p).masked_fill(following == size, 0.0)
        loss = loss.add_(p, alpha=SPARE) * (q > DRAWABLE)
        total = loss.sum(-1).clamp(min=SMALLEST_NORMAL)
        loss *= (self.record / total)[..., None]  # its sum, however the shares are rounded
        return torch.empty_like(p).scatter_(-1, self.order, torch.where(q > DRAWABLE, loss, p))

    def accept(self, draws: Int[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Probability of emitting each draw: in stage c the first c are active and share what does not survive it."""
        size = self.order.shape[-1]
        rank = torch.empty_like(self.order).scatter_(
            -1, self.order, torch.arange(size, device=draws.device).expand_as(self.order)
        )
        place, order = torch.where(draws >= 0, rank.gather(-1, draws.clamp(min=0)), size).sort(-1)
        ends = torch.nn.functional.pad(place[..., 1:], (0, 1), value=size)
        active = torch.arange(1, draws.shape[-1] + 1, device=draws.device)
        through = self.stages.between(place, ends) ** active
        alive = torch.cat([torch.ones_like(through[..., :1]), through.cumprod(-1)], -1)
        each = (alive[..., :-1] - alive[..., 1:]) / active  # to each of the active draws of stage c
        accept = each.flip(-1).cumsum(-1).flip(-1).masked_fill(place == size, 0.0)
        # A token without any target is never accepted, not even with the rounding of its neighbours.
        return torch.empty_like(accept).scatter_(-1, order, accept) * (at_each(self.target, draws) > 0)


class Stages:
    """Products of s over the phases from one position up to, not including, another."""

    def __init__(self, survive: Float[Tensor, "*batch vocabulary"]):
        ends = survive <= 0  # counted on their own, so that no infinities meet
        self.logs = padded(survive.masked_fill(ends, 1.0).log_().cumsum(-1))
        self.ends = padded(ends.cumsum(-1))

    def between(
        self, start: Int[Tensor, "*batch some"], end: Int[Tensor, "*batch some"]
    ) -> Float[Tensor, "*batch some"]:
        """prod of s over the phases start, .., end - 1."""
        sure = self.ends.gather(-1, end) == self.ends.gather(-1, start)
        return (self.logs.gather(-1, end) - self.logs.gather(-1, start)).clamp_(max=0).exp_() * sure


def schedule(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    count: Int[Tensor, "*batch"],
    draft_probability: float = 1.0,
) -> Schedule:
    """The optimal schedule for `count` i.i.d. drafts (none of them with probability 1 - `draft_probability`)."""
    p, q = target.double(), draft.double()
    total = q.sum(-1, keepdim=True)
    q = q / total.clamp(min=SMALLEST_NORMAL)
    drawable = p * (q > DRAWABLE)
    ratio, order = descending(drawable / q.clamp(min=DRAWABLE))
    count = torch.where(total[..., 0] > 0, count, 0)
    return Schedule(
        p, q, order, *phases(ratio, q.gather(-1, order), drawable.gather(-1, order), count, draft_probability)
    )


def phases(
    ratio: Float[Tensor, "*batch positions"],
    q: Float[Tensor, "*batch positions"],
    p: Float[Tensor, "*batch positions"],
    count: Int[Tensor, "*batch"],
    a: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Q, T, drop, s, alpha* and the record of a `Schedule`, from its tokens in the order of their ratios p/q."""
    Q, P = q.cumsum(-1).clamp_(max=1), p.cumsum(-1)
    D = (1 - by_count(count, lambda n, x: power(x, n), 1 - Q)).mul_(a).sub_(P)
    M = D.cummin(-1).values.clamp_(max=0)
    drop = shifted(M).sub_(D)
    m = torch.cat([ratio[..., 1:], torch.zeros_like(ratio[..., :1])], -1)
    c = (P + M).sub_(m * Q).clamp_(min=0)
    T = by_count(count, lambda n, c, m: smallest_root(n, c, m, a), c, m)
    T = torch.minimum(T, Q, out=T).maximum(Q * (drop > 0)).cummax(-1).values
    survive = (Q - T).div_(Q - shifted(T)).nan_to_num_(1.0)  # an empty phase lets everything through
    return Q, T, drop, survive, P[..., -1] + M[..., -1], -M[..., -1]


ScheduleOf = Callable[[Tensor, Tensor, Tensor, float], Any]  # as `schedule`: what has `accept` and `remainder`
Verified = tuple[Tensor, Tensor]  # what each draw is accepted with, and the next target once all are rejected


def verify_draws(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    draws: Int[Tensor, "*batch width"],
    count: Int[Tensor, "*batch"],
    draft_probability: float = 1.0,
    schedule_of: ScheduleOf = schedule,
) -> Verified:
    """Verify `count` i.i.d. draws from `draft`: a schedule, and in rows with one draw at most a coupling.

    What a row gets does not depend on the others.
    """
    single = count <= 1
    coupled = verify_one(target, draft * (count > 0)[..., None], draws, draft_probability) if single.any() else None
    if coupled and single.all():
        return coupled
    plan = schedule_of(target, draft, count, draft_probability)
    scheduled = plan.accept(draws), next_target(plan.remainder(), target.double())
    if coupled is None:
        return scheduled
    accept, new_target = (torch.where(single[..., None], *both) for both in zip(coupled, scheduled, strict=True))
    return accept, new_target


def verify_one(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    draws: Int[Tensor, "*batch width"],
    draft_probability: float,
) -> Verified:
    """Verify one draw at most, in any position, by coupling."""
    p, law = target.double(), draft.double() * draft_probability
    accept = coupling.acceptance(p, law, draws.amax(-1))
    return accept[..., None] * (draws >= 0), next_target(coupling.remainder(p, law), p)


@paired("multidraft.verification.rules.lorenz_loops")
def lorenz(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    law: Law,
) -> Outcome:
    """Optimal for i.i.d. drafts: accepts with probability alpha* = P_K + min(0, min_k F(Q_k) - P_k).

    Empty positions count as never drawn, so the number of drafts may differ between rows as long as it was fixed
    before the tokens were drawn. Where nothing may be drafted, F(t) = a (1 - (1 - t)^n), and with one draft this is
    the rule of Randomised Drafting.
    """
    return by_schedule(target, draft, drafted, law, schedule)


def by_schedule(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    law: Law,
    schedule_of: ScheduleOf,
) -> Outcome:
    """The Lorenz rule for i.i.d. drafts with schedules of one kind or another."""
    accept, new_target = verify_draws(
        target, draft, drafted, count_of(drafted, law), law.draft_probability, schedule_of
    )
    residual = (1 - accept.sum(-1, keepdim=True)).clamp(min=0) * new_target
    return Outcome(accept.to(target.dtype), residual.to(target.dtype), drafted)


def count_of(drafted: Int[Tensor, "*batch width"], law: Law) -> Int[Tensor, "*batch"]:
    """How many i.i.d. drafts were to be drawn in each row."""
    if law.draft_probability == 1:
        return (drafted >= 0).sum(-1)
    return torch.full_like(drafted[..., 0], law.drafts)


def acceptance_rate(
    target: Float[Tensor, "*batch vocabulary"], draft: Float[Tensor, "*batch vocabulary"], law: Law
) -> Float[Tensor, "*batch"]:
    """The acceptance rate, which is the optimum alpha*."""
    return optimal_iid(target, draft, law.drafts, law.draft_probability)


def shifted(values: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
    """0, then all values but the last."""
    return torch.cat([torch.zeros_like(values[..., :1]), values[..., :-1]], -1)


def padded(values: Tensor) -> Tensor:
    """0, then the values."""
    return torch.cat([torch.zeros_like(values[..., :1]), values], -1)
