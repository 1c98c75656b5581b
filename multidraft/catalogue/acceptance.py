"""Acceptance rates where there is no formula: over every tuple for small vocabularies, over sampled ones otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    from multidraft.catalogue import Scheme


@dataclass(frozen=True)
class Acceptance:
    """A rate, the method that gave it, and its standard error (None where it is exact)."""

    rate: Float[Tensor, "*batch"]
    method: str
    standard_error: Float[Tensor, "*batch"] | None = None


def by_enumeration(scheme: Scheme, target: Tensor, draft: Tensor) -> Acceptance:
    """Sum over every tuple of the law."""
    rows = zip(target.reshape(-1, target.shape[-1]), draft.reshape(-1, draft.shape[-1]), strict=True)
    rate = torch.stack([one_by_enumeration(scheme, p, q) for p, q in rows])
    return Acceptance(rate.reshape(target.shape[:-1]), "enumeration")


def one_by_enumeration(scheme: Scheme, target: Tensor, draft: Tensor) -> Tensor:
    """The same for one row."""
    drafted, weight = scheme.tuples(draft)
    outcome = scheme.verify(target.expand(len(drafted), -1), draft.expand(len(drafted), -1), drafted)
    return (weight * outcome.acceptance()).sum()


def by_sampling(
    scheme: Scheme, target: Tensor, draft: Tensor, samples: int, generator: torch.Generator | None
) -> Acceptance:
    """Average of the exact acceptance over `samples` drawn tuples, one batch of rows at a time to bound the memory."""
    rates = torch.stack(
        [scheme.verify(target, draft, scheme.draw(draft, generator)).acceptance().double() for _ in range(samples)]
    )
    return Acceptance(rates.mean(0), f"average over {samples} tuples", rates.std(0) / samples**0.5)
