"""Laws over real vocabularies sum to one: every sum that something is divided by is taken in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from multidraft.verification.distributions import normalise, tempered
from multidraft.verification.law import without
from multidraft.verification.rules.recursive_rejection import couple

SIZES = (32_000, 49_152, 151_936, 262_144)
ROUNDING = 1.5e-7  # of the quotients, each right to 6e-8
DIVIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "normalise": normalise,
    "tempered": lambda law: tempered(law, 1.3),
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
