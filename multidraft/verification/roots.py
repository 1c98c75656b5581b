"""The roots that the Lorenz schedule needs: where F(t) - m t = c, with F(t) = a (1 - (1 - t)^n)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

STEPS = 60
CONVERGED = 1e-15


def smallest_root(
    c: Float[Tensor, "*batch size"], m: Float[Tensor, "*batch size"], count: Int[Tensor, "*batch"], a: float
) -> Float[Tensor, "*batch size"]:
    """Smallest t in [0, 1] with a (1 - (1 - t)^n) - m t = c, row by row with its own n; 0 where every t is a root."""
    counts = count.unique().tolist()
    if len(counts) == 1:
        return root_for(c, m, counts[0], a)
    result = torch.zeros_like(c)
    for n in counts:
        result[count == n] = root_for(c[count == n], m[count == n], n, a)
    return result


def root_for(
    c: Float[Tensor, "*rows size"], m: Float[Tensor, "*rows size"], n: int, a: float
) -> Float[Tensor, "*rows size"]:
    """One number of drafts: linear for one, a stable quadratic for two, Newton's method otherwise."""
    c = c.clamp(min=0)
    if n == 0:
        return torch.zeros_like(c)
    if n == 1:
        return (c / (a - m)).nan_to_num(0.0, 0.0, 0.0).clamp(0, 1)
    if n == 2:
        b = 2 * a - m
        return (2 * c / (b + (b * b - 4 * a * c).clamp(min=0).sqrt())).nan_to_num(0.0, 0.0, 0.0).clamp(0, 1)
    return newton(c, m, n, a)


def newton(
    c: Float[Tensor, "*rows size"], m: Float[Tensor, "*rows size"], n: int, a: float
) -> Float[Tensor, "*rows size"]:
    """Largest root x = 1 - t of g(x) = a x^n - m x + c + m - a, from above.

    g is convex and its largest root is at most ((a - c) / a)^(1/n) (where m x is replaced by m), so every Newton step
    from there stays above the root. Replacing m x by its value at the current x gives another bound from above, which
    is far better where x^n is flat: each step takes the smaller of the two.
    """
    d = c + m - a
    x = ((a - c) / a).clamp(min=0) ** (1 / n)
    for _ in range(STEPS):
        power = x ** (n - 1)
        slope = a * n * power - m
        step = x - (a * power * x - m * x + d) / slope.clamp(min=1e-300)
        bound = ((m * x - d) / a).clamp(min=0) ** (1 / n)
        new = torch.minimum(torch.where(slope > 0, step, x), bound).clamp(min=0)
        new = torch.minimum(new, x)
        if bool((x - new <= CONVERGED).all()):
            break
        x = new
    return 1 - new
