"""The Lorenz rule: optimal verification of i.i.d. drafts, exactly, by one sort, prefix sums and one root per token.

Every draft draw gets a random time in [0, 1] and the earliest one is emitted. Token i is a job with q_i of machine time
and p_i of work on a machine whose speed F'(t) falls, where F(t) is the probability that some draft falls into draft
mass t. The optimal schedule always runs the jobs with the largest remaining work per remaining time and shares the
machine among ties in proportion to remaining time, so that the running jobs are a prefix of the tokens sorted by p/q.
The proof is in docs/theory.md; the names below are those of that page.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.drafting.law import Law
from multidraft.verification.outcome import Outcome
from multidraft.verification.roots import smallest_root

TINY = torch.finfo(torch.float64).tiny
SUPPORT = 1e-300  # a draft probability below it counts as zero: p/q must not overflow


@dataclass(frozen=True)
class Schedule:
    """All about a node that does not depend on the drafted tuple. Positions count tokens sorted by p/q, largest first."""

    rank: Int[Tensor, "*batch vocabulary"]  # token -> position
    log_survive: Float[Tensor, "*batch vocabulary_plus_1"]  # sum over earlier phases of log s, the s = 0 left out
    stops: Int[Tensor, "*batch vocabulary_plus_1"]  # number of earlier phases with s = 0
    unclaimed: Float[Tensor, "*batch vocabulary"]  # R = p - r, by token
    optimum: Float[Tensor, "*batch"]  # alpha*

    def leftover(self) -> Float[Tensor, "*batch vocabulary"]:
        """R / (1 - alpha*): what is left of the target once every draft is rejected, the same for every tuple."""
        rejected = torch.maximum((1 - self.optimum)[..., None], self.unclaimed.sum(-1, keepdim=True))
        return self.unclaimed / rejected.clamp(min=TINY)


def schedule(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    count: Int[Tensor, "*batch"],
    draft_probability: float = 1.0,
) -> Schedule:
    """The optimal schedule for `count` i.i.d. drafts (none of them with probability 1 - `draft_probability`)."""
    p, q = target.double(), draft.double()
    total = q.sum(-1, keepdim=True)
    q, count = q / total.clamp(min=TINY), torch.where(total[..., 0] > 0, count, 0)
    ratio, order = torch.where(q > SUPPORT, p / q.clamp(min=SUPPORT), -1.0).sort(-1, descending=True)
    q_sorted = q.gather(-1, order)
    p_sorted = torch.where(q_sorted > SUPPORT, p.gather(-1, order), 0.0)
    Q, P = q_sorted.cumsum(-1).clamp(max=1), p_sorted.cumsum(-1)
    D = draft_probability * (1 - (1 - Q) ** count[..., None]) - P
    M = D.cummin(-1).values.clamp(max=0)
    M_before = shifted(M)
    reset = D < M_before
    m = torch.cat([ratio[..., 1:], torch.zeros_like(ratio[..., :1])], -1).clamp(min=0)
    root = smallest_root(P + M - m * Q, m, count, draft_probability)
    T = torch.where(reset, Q, torch.minimum(root, Q)).cummax(-1).values
    width = Q - shifted(T)
    survive = torch.where(width > 0, (Q - T) / width.clamp(min=TINY), 1.0).masked_fill(reset, 0.0)
    stop = survive <= 0
    log_survive = padded(survive.masked_fill(stop, 1.0).log().cumsum(-1))
    loss = left_by_position(q_sorted, M_before - D, reset, width, log_survive)
    loss = torch.where(q_sorted > SUPPORT, torch.minimum(loss, p_sorted), p.gather(-1, order))
    return Schedule(
        rank=torch.empty_like(order).scatter_(
            -1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order)
        ),
        log_survive=log_survive,
        stops=padded(stop.cumsum(-1)),
        unclaimed=torch.empty_like(p).scatter_(-1, order, loss),
        optimum=P[..., -1] + M[..., -1],
    )


def left_by_position(
    q: Float[Tensor, "*batch vocabulary"],
    drop: Float[Tensor, "*batch vocabulary"],
    reset: Tensor,
    width: Float[Tensor, "*batch vocabulary"],
    log_survive: Float[Tensor, "*batch vocabulary_plus_1"],
) -> Float[Tensor, "*batch vocabulary"]:
    """Work that each token cannot be given: its share of the drop in D at the next reset, nothing after the last one.

    share_i = q_i * (product of s over the phases from i to the reset) / (Q_k - T_{k-1}),  sum of shares = 1.
    """
    size = q.shape[-1]
    place = torch.arange(size, device=q.device)
    next_reset = torch.where(reset, place, size).flip(-1).cummin(-1).values.flip(-1)
    k = next_reset.clamp(max=size - 1)
    through = (log_survive.gather(-1, k) - log_survive[..., :-1]).exp()
    share = q * through / width.gather(-1, k).clamp(min=TINY)
    return torch.where(next_reset < size, drop.gather(-1, k) * share, 0.0)


def accept_draws(plan: Schedule, draws: Int[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
    """Probability of emitting each draw: in stage c the first c draws are active and share what does not survive it."""
    size = plan.rank.shape[-1]
    place = torch.where(draws >= 0, plan.rank.gather(-1, draws.clamp(min=0)), size)
    place, order = place.sort(-1)
    ends = torch.cat([place, torch.full_like(place[..., :1], size)], -1)
    stops = plan.stops.gather(-1, ends)
    logs = plan.log_survive.gather(-1, ends)
    active = torch.arange(1, draws.shape[-1] + 1, device=draws.device)
    through = (active * (logs[..., 1:] - logs[..., :-1])).exp().masked_fill(stops[..., 1:] > stops[..., :-1], 0.0)
    alive = torch.cat([torch.ones_like(through[..., :1]), through.cumprod(-1)], -1)
    each = (alive[..., :-1] - alive[..., 1:]) / active  # to each of the active draws of stage c
    accept = each.flip(-1).cumsum(-1).flip(-1).masked_fill(place == size, 0.0)
    return torch.empty_like(accept).scatter_(-1, order, accept)


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
    a = law.draft_probability
    count = (drafted >= 0).sum(-1) if a == 1 else torch.full_like(drafted[..., 0], law.drafts)
    plan = schedule(target, draft, count, a)
    accept = accept_draws(plan, drafted)
    residual = (1 - accept.sum(-1, keepdim=True)).clamp(min=0) * plan.leftover()
    return Outcome(accept.to(target.dtype), residual.to(target.dtype), drafted)


def shifted(values: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
    """0, then all values but the last."""
    return padded(values)[..., :-1]


def padded(values: Tensor) -> Tensor:
    """0, then the values."""
    return torch.nn.functional.pad(values, (1, 0))
