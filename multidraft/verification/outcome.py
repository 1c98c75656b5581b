"""What a verification rule returns: the exact law of the emitted token, given the drafted ones."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.distributions import pick, uniform


@dataclass(frozen=True)
class Outcome:
    """`accept[..., j]`: probability of emitting the token at position j as a draft; `residual[..., v]`: of emitting v otherwise.

    With a target that sums to one, the two sum to one for every tuple. With a target that sums to less they average to
    it over the tuples, and what is missing from one is the probability of failing (the deferred walk's business).
    """

    accept: Float[Tensor, "*batch width"]
    residual: Float[Tensor, "*batch vocabulary"]
    drafted: Int[Tensor, "*batch width"]

    def law(self) -> Float[Tensor, "*batch vocabulary"]:
        """Probability of emitting each token, whether drafted or not."""
        return self.residual.scatter_add(-1, self.drafted.clamp(min=0), self.accept)

    def acceptance(self) -> Float[Tensor, "*batch"]:
        """Probability that the emitted token is a drafted one."""
        return self.accept.sum(-1)

    def sample(self, generator: torch.Generator | None = None) -> tuple[Int[Tensor, "*batch"], Int[Tensor, "*batch"]]:
        """An emitted token and the position of the draft that it was, or -1 where it came from the residual.

        Both are -1 with the probability that is missing from one (which only a sub-probability target leaves).
        """
        batch, width = self.accept.shape[:-1], self.accept.shape[-1]
        weights = torch.cat([self.accept, self.residual], -1)
        missing = (1 - weights.sum(-1, keepdim=True, dtype=torch.float64)).clamp(min=0)
        missing = torch.where(missing > 1e-6, missing, 0.0)
        choice = pick(torch.cat([weights.double(), missing], -1), uniform((*batch, 1), generator, weights.device))[
            ..., 0
        ]
        position = torch.where(choice < width, choice, -1)
        token = torch.where(
            choice < width, self.drafted.gather(-1, choice.clamp(max=width - 1)[..., None])[..., 0], choice - width
        )
        return torch.where(choice == weights.shape[-1], -1, token), position
