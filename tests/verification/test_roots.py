"""Newton's method for the Lorenz schedule where a look is a wait: as good without looking, also at the worst roots."""

import pytest
import torch
from distant import Device, Distant, near
from torch import Tensor

from multidraft.verification.rules import roots

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


def found(n: int, a: float) -> tuple[Tensor, Tensor]:
    """How much the values at the roots that were found without a look exceed what is enough, and those with looks."""
    c, m = worst(n, a)
    seen = roots.smallest_root(n, c, m, a)
    with Device() as device:
        blind = near(roots.smallest_root(n, Distant(c), Distant(m), a))
    assert not device.waits
    small = ENOUGH * roots.CONVERGED * max(1, n / 4)
    errors = [(a * roots.power(1 - t, n) - m * (1 - t) + c + m - a).abs() / small for t in (blind, seen)]
    assert (blind - seen).abs().max() < 1e-6  # of double roots, the square root of rounding
    slope = (a * n * roots.power(1 - seen, n - 1) - m).abs()
    assert ((blind - seen).abs() * slope).max() <= 2 * small
    return errors[0], errors[1]


@pytest.mark.parametrize("a", [1.0, 0.6, 0.01])
@pytest.mark.parametrize("n", [3, 4, 5, 8, 16, 64])
def test_roots_without_a_look(n: int, a: float) -> None:
    blind, seen = found(n, a)
    assert blind.max() <= 1
    assert seen.max() <= 1


def test_fewer_steps_would_not_do(monkeypatch) -> None:
    monkeypatch.setattr(roots, "BLIND", 20)
    with pytest.raises(AssertionError):
        assert found(3, 1.0)[0].max() <= 1
