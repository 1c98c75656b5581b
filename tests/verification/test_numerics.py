"""Numbers are right to rounding: sums over real vocabularies, and the worst roots of the Lorenz schedule."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from multidraft.verification.distributions import normalise
from multidraft.verification.law import without
from multidraft.verification.rules import lorenz_schedule as roots
from multidraft.verification.rules.recursive_rejection import couple

SIZES = (49_152, 262_144)
ROUNDING = 1.5e-7  # of the quotients, each right to 6e-8
DIVIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "normalise": normalise,
    "without": lambda law: without(law, torch.tensor([0, 5])),
    "couple": lambda law: couple(normalise(law), without(law.flip(0), torch.tensor([1])), torch.tensor(3))[1],
}


def shapes(size: int) -> dict[str, Tensor]:
    """Logits as of nothing known, of one likely token, and of a language model."""
    generator = torch.Generator().manual_seed(size)
    flat, ranks = torch.zeros(size), torch.arange(1, size + 1)
    peaked = flat.index_fill(0, torch.tensor([0]), 16.0)
    return {"flat": flat, "peaked": peaked, "real": torch.randn(size, generator=generator) - 1.6 * ranks.log()}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", DIVIDED)
def test_what_is_divided_sums_to_one(name: str, size: int) -> None:
    for shape, logits in shapes(size).items():
        law = DIVIDED[name](logits.softmax(-1))
        assert abs(float(law.double().sum()) - 1) < ROUNDING, shape


def test_a_running_float32_sum_would_not_do() -> None:
    """The mistake that the sums above must catch: one number after another in float32."""
    weights = shapes(SIZES[-1])["real"].exp()
    total = weights.numpy().cumsum()[-1]
    assert abs(float((weights / total).double().sum()) - 1) > ROUNDING


# --- Newton's method for the Lorenz schedule ends within rounding, also at the worst roots ----------------------------

SIZE = 20_000
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
    return float(value.max()) / (ENOUGH * roots.CONVERGED_GAP * max(1, n / 4))


@pytest.mark.parametrize("a", [1.0, 0.6, 0.01])
@pytest.mark.parametrize("n", [3, 4, 5, 8, 16, 64])
def test_roots_are_found(n: int, a: float, monkeypatch) -> None:
    assert excess(n, a) <= 1
    if (n, a) == (3, 1.0):
        monkeypatch.setattr(roots, "STEPS", 20)
        assert excess(n, a) > 1, "fewer steps would not do"
