"""The Lorenz rule: optimal verification of i.i.d. drafts, exactly, by one sort, prefix sums and one root per token.

Every draft draw gets a random time in [0, 1] and the earliest one is emitted. Token i is a job with q_i of machine time
and p_i of work on a machine whose speed F'(t) falls, where F(t) is the probability that some draft falls into draft
mass t. The optimal schedule runs the jobs with the largest remaining work per remaining time and shares the machine
among ties in proportion to remaining time, so that the running jobs are a prefix of the tokens sorted by p/q; jobs
whose work would outlast their time are run out before the next one joins. The proof is in docs/theory.md; the names
below are those of that page.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.machine.device import waits
from multidraft.verification.distributions import descending
from multidraft.verification.law import Law, at_each
from multidraft.verification.loops import paired
from multidraft.verification.outcome import Outcome
from multidraft.verification.precision import DRAWABLE, SMALLEST_NORMAL, SPARE, missing, next_target
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
    undrafted: Float[Tensor, "*batch"]  # the target's mass on tokens that are never drafted

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
        # A token without any target claims nothing, and not the rounding of its neighbours either.
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


@dataclass(frozen=True)
class Verified:
    """I.i.d. draws verified: what each may claim, and the next target once all are rejected."""

    target: Float[Tensor, "*batch vocabulary"]
    accept: Float[Tensor, "*batch width"]
    remainder: Callable[[], Float[Tensor, "*batch vocabulary"]]  # R = p - r
    remainder_mass: Callable[[], Float[Tensor, "*batch"]]  # the sum of R

    @cached_property
    def rejected(self) -> Float[Tensor, "*batch"]:
        """1 - alpha* = (1 - sum p) + sum R, in positive terms; positive also where nothing is ever rejected."""
        return missing(self.target) + self.remainder_mass() + SPARE

    @cached_property
    def next_mass(self) -> Float[Tensor, "*batch"]:
        """The sum of the next target: one where the target is full."""
        lacks, mass = missing(self.target), self.remainder_mass()
        return torch.where(lacks > 0, mass / (lacks + mass), 1.0)

    def next_target(self) -> Float[Tensor, "*batch vocabulary"]:
        """R / (1 - alpha*), the target of whatever comes next."""
        return next_target(self.remainder(), self.target.double())


def schedule(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    count: Int[Tensor, "*batch"],
    draft_probability: float = 1.0,
    most: int | None = None,
) -> Schedule:
    """The optimal schedule for `count` i.i.d. drafts (none of them with probability 1 - `draft_probability`).

    `most` is the largest count that is possible, where a look at the counts is a wait.
    """
    p, q = target.double(), draft.double()
    total = q.sum(-1, keepdim=True)
    q = q / total.clamp(min=SMALLEST_NORMAL)
    drawable = p * (q > DRAWABLE)
    ratio, order = descending(drawable / q.clamp(min=DRAWABLE))
    count = torch.where(total[..., 0] > 0, count, 0)
    in_order = (ratio, q.gather(-1, order), drawable.gather(-1, order))
    return Schedule(p, q, order, *phases(*in_order, count, draft_probability, most), (p - drawable).sum(-1))


def phases(
    ratio: Float[Tensor, "*batch positions"],
    q: Float[Tensor, "*batch positions"],
    p: Float[Tensor, "*batch positions"],
    count: Int[Tensor, "*batch"],
    a: float,
    most: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Q, T, drop, s, alpha* and the record of a `Schedule`, from its tokens in the order of their ratios p/q."""
    Q, P = q.cumsum(-1).clamp_(max=1), p.cumsum(-1)
    D = (1 - by_count(count, most, lambda n, x: power(x, n), 1 - Q)).mul_(a).sub_(P)
    M = D.cummin(-1).values.clamp_(max=0)
    drop = shifted(M).sub_(D)
    m = torch.cat([ratio[..., 1:], torch.zeros_like(ratio[..., :1])], -1)
    c = (P + M).sub_(m * Q).clamp_(min=0)
    T = by_count(count, most, lambda n, c, m: smallest_root(n, c, m, a), c, m)
    T = torch.minimum(T, Q, out=T).maximum(Q * (drop > 0)).cummax(-1).values
    survive = (Q - T).div_(Q - shifted(T)).nan_to_num_(1.0)  # an empty phase lets everything through
    return Q, T, drop, survive, P[..., -1] + M[..., -1], -M[..., -1]


@dataclass(frozen=True)
class Truncated:
    """The schedule of some tokens, which hold all that can be drafted."""

    target: Float[Tensor, "*batch vocabulary"]
    tokens: Int[Tensor, "*batch some"]
    plan: Schedule

    @property
    def optimum(self) -> Float[Tensor, "*batch"]:
        """alpha*."""
        return self.plan.optimum

    @property
    def record(self) -> Float[Tensor, "*batch"]:
        """What remains of the target on tokens that can be drafted."""
        return self.plan.record

    @property
    def undrafted(self) -> Float[Tensor, "*batch"]:
        """The target's mass on tokens that are never drafted."""
        return self.plan.undrafted + self.target.double().scatter(-1, self.tokens, 0.0).sum(-1)

    def accept(self, draws: Int[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Probability of emitting each draw."""
        ranks = (self.tokens[..., None, :] == draws[..., None]).to(torch.uint8).argmax(-1)
        return self.plan.accept(torch.where(draws >= 0, ranks, -1))

    def remainder(self) -> Float[Tensor, "*batch vocabulary"]:
        """R = p - r, by token; all of p where nothing can be drafted."""
        return self.target.double().scatter(-1, self.tokens, self.plan.remainder())


@paired("multidraft.verification.rules.lorenz_loops")
def drawable_schedule(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    count: Int[Tensor, "*batch"],
    draft_probability: float = 1.0,
    most: int | None = None,
) -> Schedule | Truncated:
    """The schedule of the tokens that can be drafted alone, where they are few enough for a short sort to pay."""
    if waits(draft):
        return schedule(target, draft, count, draft_probability, most)
    size = max(int((draft > 0).sum(-1).max()), 1)
    if 2 * size >= draft.shape[-1]:
        return schedule(target, draft, count, draft_probability)
    tokens = draft.topk(size, -1).indices  # shorter rows are filled up
    plan = schedule(target.gather(-1, tokens), draft.gather(-1, tokens), count, draft_probability)
    return Truncated(target, tokens, plan)


ScheduleOf = Callable[[Tensor, Tensor, Tensor, float, int], Any]  # as `schedule`: what a Schedule offers


def verify_draws(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    draws: Int[Tensor, "*batch width"],
    count: Int[Tensor, "*batch"],
    draft_probability: float = 1.0,
    schedule_of: ScheduleOf = drawable_schedule,
) -> Verified:
    """Verify `count` i.i.d. draws from `draft`; where there is one at most, in the first position, it is a coupling."""
    most = draws.shape[-1] if waits(draws) else int(count.max())
    if most <= 1:
        possible = draft if not waits(draws) and int(count.min()) == 1 else draft * (count > 0)[..., None]
        return verify_one(target, possible, draws, draft_probability)
    plan = schedule_of(target, draft, count, draft_probability, most)
    return Verified(target, plan.accept(draws), plan.remainder, lambda: plan.record + plan.undrafted)


def verify_one(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    draws: Int[Tensor, "*batch width"],
    draft_probability: float,
) -> Verified:
    """The same for one draw at most, in the first position: a coupling, of one token alone until it is rejected."""
    law = draft * draft_probability if draft_probability < 1 else draft
    accept = coupling.acceptance(target, law, draws[..., 0])[..., None]
    remainder = lambda: coupling.remainder(target.double(), law.double())  # noqa: E731
    accept = torch.nn.functional.pad(accept, (0, draws.shape[-1] - 1))
    return Verified(target, accept, remainder, lambda: remainder().sum(-1))


def lorenz(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    law: Law,
    schedule_of: ScheduleOf = drawable_schedule,
) -> Outcome:
    """Optimal for i.i.d. drafts: accepts with probability alpha* = P_K + min(0, min_k F(Q_k) - P_k).

    Empty positions count as never drawn, so the number of drafts may differ between rows as long as it was fixed
    before the tokens were drawn. Where nothing may be drafted, F(t) = a (1 - (1 - t)^n), and with one draft this is
    the rule of Randomised Drafting.
    """
    a = law.draft_probability
    if drafted.shape[-1] == 1:
        draws = verify_one(target, draft, drafted, a)
    else:
        count = (drafted >= 0).sum(-1) if a == 1 else torch.full_like(drafted[..., 0], law.drafts)
        draws = verify_draws(target, draft, drafted, count, a, schedule_of)
    alive = lambda: (1 - draws.accept.sum(-1)).clamp(min=0)  # noqa: E731
    residual = lambda: (alive()[..., None] * draws.next_target()).to(target.dtype)  # noqa: E731
    mass = lambda: (alive() * draws.next_mass).to(target.dtype)  # noqa: E731
    return Outcome(draws.accept.to(target.dtype), residual, drafted, mass)


def shifted(values: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
    """0, then all values but the last."""
    return torch.cat([torch.zeros_like(values[..., :1]), values[..., :-1]], -1)


def padded(values: Tensor) -> Tensor:
    """0, then the values."""
    return torch.cat([torch.zeros_like(values[..., :1]), values], -1)
