"""Acceptance rates where there is no formula: over every tuple for small vocabularies, over sampled ones otherwise."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.verification.outcome import Outcome

Tuples = Callable[[Tensor], tuple[Tensor, Tensor]]  # from a draft distribution to all tuples and their probabilities
Draw = Callable[[Tensor, torch.Generator | None], Tensor]
Verify = Callable[[Tensor, Tensor, Tensor], Outcome]  # target, draft, drafted


@dataclass(frozen=True)
class Acceptance:
    """A rate, the method that gave it, and its standard error (None where it is exact)."""

    rate: Float[Tensor, "*batch"]
    method: str
    standard_error: Float[Tensor, "*batch"] | None = None


def by_enumeration(tuples: Tuples, verify: Verify, target: Tensor, draft: Tensor) -> Acceptance:
    """Sum over every tuple of the law."""
    rows = zip(target.reshape(-1, target.shape[-1]), draft.reshape(-1, draft.shape[-1]), strict=True)
    rate = torch.stack([one_by_enumeration(tuples, verify, p, q) for p, q in rows])
    return Acceptance(rate.reshape(target.shape[:-1]), "enumeration")


def one_by_enumeration(tuples: Tuples, verify: Verify, target: Tensor, draft: Tensor) -> Tensor:
    """The same for one row."""
    drafted, weight = tuples(draft)
    outcome = verify(target.expand(len(drafted), -1), draft.expand(len(drafted), -1), drafted)
    return (weight * outcome.acceptance()).sum()


def by_sampling(
    draw: Draw, verify: Verify, target: Tensor, draft: Tensor, samples: int, generator: torch.Generator | None
) -> Acceptance:
    """Average of the exact acceptance over `samples` drawn tuples, one batch of rows at a time to bound the memory."""
    rates = torch.stack([verify(target, draft, draw(draft, generator)).acceptance().double() for _ in range(samples)])
    return Acceptance(rates.mean(0), f"average over {samples} tuples", rates.std(0) / samples**0.5)
