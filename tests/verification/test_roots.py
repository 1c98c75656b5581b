"""Newton's method for the Lorenz schedule: it ends within rounding, also at the worst roots."""

import pytest
import torch
from torch import Tensor

from multidraft.verification.rules import schedule as roots

SIZE = 20_000  # more than `roots.MANY`
ENOUGH = 4  # times the value at which Newton's method ends


def worst(n: int, a: float) -> tuple[Tensor, Tensor]:
    """c and m of roots anywhere, near both ends, double ones, nearly double ones, and flat ones."""
    random = torch.Generator().manual_seed(n)
    x, v, tiny = torch.rand(3, SIZE, dtype=torch.float64, generator=random)
    tiny, kind = 10 ** (-16 * tiny), torch.arange(SIZE) % 6
    x = torch.where(kind == 1, tiny, torch.where(kind == 2, 1 - tiny, x))
    share = torch.where(kind == 3, 1.0, torch.where(kind == 4, 1 - tiny, torch.where(kind == 5, tiny, v)))
    m = share * a * n * x ** (n - 1)
    return (m * x - a * x**n - m + a).clamp(min=0), m


def excess(n: int, a: float) -> float:
    """How much the worst value at the roots that were found exceeds what is enough."""
    c, m = worst(n, a)
    t = roots.smallest_root(n, c, m, a)
    value = (a * roots.power(1 - t, n) - m * (1 - t) + c + m - a).abs()
    return float(value.max()) / (ENOUGH * roots.CONVERGED * max(1, n / 4))


@pytest.mark.parametrize("a", [1.0, 0.6, 0.01])
@pytest.mark.parametrize("n", [3, 4, 5, 8, 16, 64])
def test_roots_are_found(n: int, a: float) -> None:
    assert excess(n, a) <= 1


@pytest.mark.parametrize(("n", "a"), [(3, 1.0)])
def test_fewer_steps_would_not_do(n: int, a: float, monkeypatch) -> None:
    monkeypatch.setattr(roots, "STEPS", 20)
    assert excess(n, a) > 1
