"""The schedule behind the Lorenz rule: phases, what survives them, and the roots that say when they end.

Every draw gets a random time in [0, 1] and the earliest one is emitted. Token i is a job with q_i of machine time and
p_i of work on a machine whose speed F'(t) falls, where F(t) = a (1 - (1 - t)^n) is the probability that some draft
falls into draft mass t. The running jobs are a prefix of the tokens sorted by p/q and share the machine in proportion
to remaining time. The proof is in docs/theory.md; the names below are those of that page.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.distributions import descending
from multidraft.verification.law import at_each
from multidraft.verification.precision import (
    MIN_DRAFT_PROBABILITY,
    NEGLIGIBLE_MASS,
    NEVER_ZERO,
    SMALLEST_NORMAL,
    Rates,
    Rows,
    Tokens,
    Tuples,
)

STEPS = 40
CONVERGED_GAP = 1e-15

Positions = Float[Tensor, "*batch positions"]


@dataclass(frozen=True)
class Schedule:
    """All about a node but the drafted tuple; positions count tokens sorted by p/q, largest first."""

    target: Rows
    draft: Rows
    order: Int[Tensor, "*batch vocabulary"]  # position -> token
    Q: Rows  # draft mass up to a position
    T: Rows  # when the phase of a position ends
    drop: Rows  # how far D falls below its record at a position: positive at a reset
    survive: Rows  # s: what survives of a draw after the phase of a position
    optimum: Rates  # alpha*
    record: Rates  # the sum of all drops: what remains of the target on tokens that can be drafted

    @cached_property
    def sums(self) -> tuple[Tensor, Tensor]:
        """Sums of log s before every position, and counts of the s that are zero, so that no infinities meet."""
        ends = self.survive <= 0
        return prepend_zero(self.survive.masked_fill(ends, 1.0).log_().cumsum(-1)), prepend_zero(ends.cumsum(-1))

    def between(self, start: Tokens, end: Tokens) -> Float[Tensor, "*batch some"]:
        """The product of s over the phases start, .., end - 1."""
        logs, ends = self.sums
        sure = ends.gather(-1, end) == ends.gather(-1, start)
        return (logs.gather(-1, end) - logs.gather(-1, start)).clamp_(max=0).exp_() * sure

    def remainder(self) -> Rows:
        """R = p - r, by token: nothing after the last reset, and before one a share of its drop.

        share_i = q_i * (product of s over the phases from i to the reset) / (Q_k - T_{k-1}),  sum of shares = 1.
        Tokens that are never drafted keep all of p.
        """
        size, p, q = self.Q.shape[-1], self.target.gather(-1, self.order), self.draft.gather(-1, self.order)
        place = torch.arange(size, device=p.device)
        following = torch.where(self.drop > 0, place, size).flip(-1).cummin(-1).values.flip(-1)
        k = following.clamp(max=size - 1)
        width = (self.Q - shift_right(self.T)).gather(-1, k).clamp(min=SMALLEST_NORMAL)
        share = q * self.between(place.expand_as(k), k) / width
        loss = torch.minimum(self.drop.gather(-1, k) * share, p).masked_fill(following == size, 0.0)
        loss = loss.add_(p, alpha=NEGLIGIBLE_MASS) * (q > MIN_DRAFT_PROBABILITY)
        total = loss.sum(-1).clamp(min=SMALLEST_NORMAL)
        loss *= (self.record / total)[..., None]  # its sum, however the shares are rounded
        return torch.empty_like(p).scatter_(-1, self.order, torch.where(q > MIN_DRAFT_PROBABILITY, loss, p))

    def accept(self, draws: Tuples) -> Float[Tensor, "*batch width"]:
        """Probability of emitting each draw: in stage c the first c are active and share what does not survive it."""
        size = self.order.shape[-1]
        places = torch.arange(size, device=draws.device).expand_as(self.order)
        rank = torch.empty_like(self.order).scatter_(-1, self.order, places)
        place, order = torch.where(draws >= 0, rank.gather(-1, draws.clamp(min=0)), size).sort(-1)
        ends = torch.nn.functional.pad(place[..., 1:], (0, 1), value=size)
        active = torch.arange(1, draws.shape[-1] + 1, device=draws.device)
        through = self.between(place, ends) ** active
        alive = torch.cat([torch.ones_like(through[..., :1]), through.cumprod(-1)], -1)
        share = (alive[..., :-1] - alive[..., 1:]) / active  # to each of the active draws of stage c
        accept = share.flip(-1).cumsum(-1).flip(-1).masked_fill(place == size, 0.0)
        # A token without any target is never accepted, not even with the rounding of its neighbours.
        return torch.empty_like(accept).scatter_(-1, order, accept) * (at_each(self.target, draws) > 0)


def schedule(target: Rows, draft: Rows, count: Int[Tensor, "*batch"], draft_probability: float = 1.0) -> Schedule:
    """The optimal schedule for `count` i.i.d. drafts (none of them with probability 1 - `draft_probability`)."""
    p, q = target.double(), draft.double()
    total = q.sum(-1, keepdim=True)
    q = q / total.clamp(min=SMALLEST_NORMAL)
    drawable = p * (q > MIN_DRAFT_PROBABILITY)
    ratio, order = descending(drawable / q.clamp(min=MIN_DRAFT_PROBABILITY))
    count = torch.where(total[..., 0] > 0, count, 0)
    positions = phases(ratio, q.gather(-1, order), drawable.gather(-1, order), count, draft_probability)
    return Schedule(p, q, order, *positions)


def phases(
    ratio: Positions, q: Positions, p: Positions, count: Int[Tensor, "*batch"], a: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Q, T, drop, s, alpha* and the record of a `Schedule`, from its tokens in the order of their ratios p/q."""
    Q, P = q.cumsum(-1).clamp_(max=1), p.cumsum(-1)
    D = (1 - by_count(count, lambda n, x: power(x, n), 1 - Q)).mul_(a).sub_(P)
    M = D.cummin(-1).values.clamp_(max=0)
    drop = shift_right(M).sub_(D)
    m = torch.nn.functional.pad(ratio[..., 1:], (0, 1))
    c = (P + M).sub_(m * Q).clamp_(min=0)
    T = by_count(count, lambda n, c, m: smallest_root(n, c, m, a), c, m)
    T = torch.minimum(T, Q, out=T).maximum(Q * (drop > 0)).cummax(-1).values
    survive = (Q - T).div_(Q - shift_right(T)).nan_to_num_(1.0)  # an empty phase lets everything through
    return Q, T, drop, survive, P[..., -1] + M[..., -1], -M[..., -1]


def prepend_zero(values: Tensor) -> Tensor:
    """0, then the values."""
    return torch.nn.functional.pad(values, (1, 0))


def shift_right(values: Tensor) -> Tensor:
    """0, then all values but the last."""
    return prepend_zero(values[..., :-1])


def by_count(count: Int[Tensor, "*batch"], function: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    """`function(n, *rows)` for the rows of each number of drafts n, put together again."""
    counts = set(count.flatten().tolist())
    if len(counts) == 1:
        return function(counts.pop(), *arguments)
    result = torch.empty_like(arguments[0])
    for n in counts:
        rows = count == n
        result[rows] = function(n, *(argument[rows] for argument in arguments))
    return result


def power(x: Tensor, n: int) -> Tensor:
    """x^n by repeated squaring, several times faster than a general power."""
    result = None
    while n:
        if n & 1:
            result = x if result is None else result * x
        x, n = x * x if n > 1 else x, n >> 1
    return torch.ones_like(x) if result is None else result


def smallest_root(n: int, c: Positions, m: Positions, a: float) -> Positions:
    """Smallest t in [0, 1] with a (1 - (1 - t)^n) - m t = c, and 0 where every t is a root.

    Otherwise than for one draft or two, 1 - t is the largest root x of the convex g(x) = a x^n - m x + c + m - a, and
    at most ((a - c) / a)^(1/n), where m x is replaced by m: every Newton step from there stays above it.
    """
    if n == 0:
        return torch.zeros_like(c)
    if n == 1:
        return (c / (a - m)).nan_to_num_(0.0, 0.0, 0.0)
    if n == 2:
        b = 2 * a - m
        return (2 * c / (b + (b * b - 4 * a * c).clamp_(min=0).sqrt_())).nan_to_num_(0.0, 0.0, 0.0)
    x = (1 - c / a).clamp_(min=0).log_().div_(n).exp_()  # several times faster than a general power
    return descend(x, n, c + m - a, m, a).neg_().add_(1)


def descend(x: Positions, n: int, d: Positions, m: Positions, a: float) -> Positions:
    """Newton's method for a x^n - m x + d from above.

    A small value is enough: where the function is flat, the law hardly depends on the root. What has not converged
    after `STEPS` cannot be seen in any law. A root that has converged stays: a step more would divide rounding by a
    slope that may be rounding too.
    """
    small = CONVERGED_GAP * max(1, n / 4)  # the rounding of x^n
    for _ in range(STEPS):
        high = power(x, n - 1)
        slope = (high * (a * n)).sub_(m).add_(NEVER_ZERO)  # where m is the slope at the start: the root is there
        value = high.mul_(a).sub_(m).mul_(x).add_(d)
        if not x.numel() or float(value.max()) <= small:
            break
        x = x.sub_((value / slope).masked_fill_(value <= small, 0.0))
    return x
