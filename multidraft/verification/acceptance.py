"""What a rule emits and accepts over all tuples of drafts, and how often over tuples that are drawn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.law import Law
from multidraft.verification.outcome import Outcome

Rule = Callable[[Tensor, Tensor, Tensor, Any], Outcome]  # target, draft, drafted, and the law they were drawn by


@dataclass(frozen=True)
class Summed:
    """A rule's outcomes averaged over every tuple of each row, beside the tuples with their rows and probabilities."""

    emitted: Float[Tensor, "rows vocabulary"]  # the law of the emitted token: the target's, for a lossless rule
    acceptance: Float[Tensor, " rows"]
    row: Int[Tensor, " tuples"]
    drafted: Int[Tensor, "tuples width"]
    probability: Float[Tensor, " tuples"]
    outcome: Outcome


def over_all_tuples(
    rule: Rule, law: Law, target: Float[Tensor, "rows vocabulary"], draft: Float[Tensor, "rows *drafting vocabulary"]
) -> Summed:
    """Sum over every tuple of drafts: of P(drafted) times what the rule makes of it, in float64.

    >>> from multidraft.verification.laws import Iid
    >>> from multidraft.verification.rules.naive import naive
    >>> p, q = torch.tensor([[0.25, 0.75]]), torch.tensor([[0.5, 0.5]])
    >>> over_all_tuples(naive, Iid(1), p, q).acceptance
    tensor([0.5000], dtype=torch.float64)
    """
    row, drafted, probability = law.tuples_of_rows(draft)
    outcome = rule(target[row], draft[row], drafted, law)
    weight = probability.double()
    emitted = torch.zeros_like(target, dtype=torch.float64)
    emitted.index_add_(0, row, weight[:, None] * outcome.law().double())
    accepted = torch.zeros_like(emitted[:, 0]).index_add_(0, row, weight * outcome.acceptance().double())
    return Summed(emitted, accepted, row, drafted, probability, outcome)


@dataclass(frozen=True)
class Acceptance:
    """A rate, the method that gave it, and its standard error (None where it is exact)."""

    rate: Float[Tensor, "*batch"]
    method: str
    standard_error: Float[Tensor, "*batch"] | None = None


def by_enumeration(rule: Rule, law: Law, target: Tensor, draft: Tensor) -> Acceptance:
    """The acceptance rate, summed over every tuple of each row."""
    p, q = target.reshape(-1, target.shape[-1]), draft.reshape(-1, *draft.shape[target.ndim - 1 :])
    rates = [over_all_tuples(rule, law, *pair).acceptance for pair in zip(p.split(1), q.split(1), strict=True)]
    return Acceptance(torch.cat(rates).to(target.dtype).reshape(target.shape[:-1]), "enumeration")


def by_sampling(outcome: Callable[[], Outcome], samples: int) -> Acceptance:
    """The acceptance rate, averaged over tuples that are drawn, one for each row at a time to bound the memory."""
    rates = torch.stack([outcome().acceptance().double() for _ in range(samples)])
    return Acceptance(rates.mean(0), f"average over {samples} tuples", rates.std(0) / samples**0.5)
