"""The roots that the Lorenz schedule needs: where F(t) - m t = c, with F(t) = a (1 - (1 - t)^n)."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.precision import NEVER_ZERO

STEPS = 40
CONVERGED = 1e-15
ALL_TOGETHER, MANY = 5, 16_384  # steps, and roots beyond which picking out the open ones pays


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


def smallest_root(
    n: int, c: Float[Tensor, "*rows size"], m: Float[Tensor, "*rows size"], a: float
) -> Float[Tensor, "*rows size"]:
    """Smallest t in [0, 1] with a (1 - (1 - t)^n) - m t = c, and 0 where every t is a root.

    Linear for one draft, a quadratic in its stable form for two, Newton's method otherwise.
    """
    if n == 0:
        return torch.zeros_like(c)
    if n == 1:
        return (c / (a - m)).nan_to_num_(0.0, 0.0, 0.0)
    if n == 2:
        b = 2 * a - m
        return (2 * c / (b + (b * b - 4 * a * c).clamp_(min=0).sqrt_())).nan_to_num_(0.0, 0.0, 0.0)
    return newton(n, c, m, a)


def newton(
    n: int, c: Float[Tensor, "*rows size"], m: Float[Tensor, "*rows size"], a: float
) -> Float[Tensor, "*rows size"]:
    """1 - x for the largest root x of g(x) = a x^n - m x + c + m - a.

    g is convex and its largest root is at most ((a - c) / a)^(1/n), where m x is replaced by m: every Newton step from
    there stays above the root.
    """
    above = (1 - c / a).clamp_(min=0).log_().div_(n).exp_()  # several times faster than a general power
    return descend(above, n, c + m - a, m, a, STEPS).neg_().add_(1)


def descend(
    x: Float[Tensor, "*rows"],
    n: int,
    d: Float[Tensor, "*rows"],
    m: Float[Tensor, "*rows"],
    a: float,
    steps: int,
) -> Float[Tensor, "*rows"]:
    """Newton's method for a x^n - m x + d from above; once little is left to do in many rows, that goes on alone.

    A small value is enough: where the function is flat, the law hardly depends on the root. What has not converged
    after `STEPS` has x^n below 1e-16 and cannot be seen in any law. A root that has converged stays while others go
    on: a step more would divide rounding by a slope that may be rounding too.
    """
    small = CONVERGED * max(1, n / 4)  # the rounding of x^n
    for step in range(steps):
        high = power(x, n - 1)
        slope = (high * (a * n)).sub_(m).add_(NEVER_ZERO)  # where m is the slope at the start: the root is there
        value = high.mul_(a).sub_(m).mul_(x).add_(d)
        if not x.numel() or float(value.max()) <= small:
            break
        if step == ALL_TOGETHER and x.numel() > MANY:
            going = (value > small).nonzero(as_tuple=True)
            x[going] = descend(x[going], n, d[going], m[going], a, steps - step)
            break
        x = x.sub_((value / slope).masked_fill_(value <= small, 0.0))
    return x
