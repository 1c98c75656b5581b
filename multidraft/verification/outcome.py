"""What a verification rule returns: the exact law of the emitted token, given the drafted ones."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.distributions import pick, uniform
from multidraft.verification.law import Law
from multidraft.verification.precision import Rates, Rows, Tuples, missing


class Outcome:
    """`accept[..., j]`: probability of emitting draft j; `residual[..., v]`: of emitting token v otherwise.

    They sum to one for every tuple, or, with a target that sums to less, average to its sum over the tuples: what is
    missing is the probability of failing (the deferred walk's business).
    """

    def __init__(self, accept: Float[Tensor, "*batch width"], residual: Rows, drafted: Tuples):
        self.accept, self.residual, self.drafted = accept, residual, drafted

    @cached_property
    def residual_mass(self) -> Rates:
        """Probability of emitting a token otherwise than as a draft."""
        return self.residual.sum(-1)

    def law(self) -> Rows:
        """Probability of emitting each token, whether drafted or not."""
        return self.residual.scatter_add(-1, self.drafted.clamp(min=0), self.accept)

    def acceptance(self) -> Rates:
        """Probability that the emitted token is a drafted one."""
        return self.accept.sum(-1)

    def sample(self, generator: torch.Generator | None = None) -> tuple[Int[Tensor, "*batch"], Int[Tensor, "*batch"]]:
        """An emitted token and the position of the draft that it was, or -1 where it came from the residual.

        Both are -1 with the probability that is missing from one (which only a sub-probability target leaves).
        """
        batch, width = self.accept.shape[:-1], self.accept.shape[-1]
        weights = torch.cat([self.accept, self.residual], -1)
        weights = torch.cat([weights.double(), missing(weights)[..., None]], -1)
        choice = pick(weights, uniform((*batch, 1), generator, weights.device))
        position = torch.where(choice < width, choice, -1)
        drafted = self.drafted.gather(-1, choice.clamp(max=width - 1))
        token = torch.where(choice < width, drafted, choice - width)
        return torch.where(choice == weights.shape[-1] - 1, -1, token)[..., 0], position[..., 0]


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
