"""What a verification rule returns: the exact law of the emitted token, given the drafted ones."""

from collections.abc import Callable
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.distributions import pick, uniform
from multidraft.verification.precision import missing


class Outcome:
    """`accept[..., j]`: probability of emitting draft j; `residual[..., v]`: of emitting token v otherwise.

    With a target that sums to one, the two sum to one for every tuple. With a target that sums to less they average to
    it over the tuples, and what is missing from one is the probability of failing (the deferred walk's business). The
    residual and its sum `residual_mass` may be given as functions: a walk that accepts never asks for them.
    """

    def __init__(
        self,
        accept: Float[Tensor, "*batch width"],
        residual: Float[Tensor, "*batch vocabulary"] | Callable[[], Tensor],
        drafted: Int[Tensor, "*batch width"],
        residual_mass: Float[Tensor, "*batch"] | Callable[[], Tensor] | None = None,
    ):
        self.accept, self.drafted = accept, drafted
        self._residual, self._residual_mass = residual, residual_mass

    @cached_property
    def residual(self) -> Float[Tensor, "*batch vocabulary"]:
        """Probability of emitting each token otherwise than as a draft."""
        return self._residual if isinstance(self._residual, Tensor) else self._residual()

    @cached_property
    def residual_mass(self) -> Float[Tensor, "*batch"]:
        """Probability of emitting a token otherwise than as a draft: the sum of `residual`."""
        if self._residual_mass is None:
            return self.residual.sum(-1)
        return self._residual_mass if isinstance(self._residual_mass, Tensor) else self._residual_mass()

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
        weights = torch.cat([weights.double(), missing(weights)[..., None]], -1)
        choice = pick(weights, uniform((*batch, 1), generator, weights.device))
        position = torch.where(choice < width, choice, -1)
        drafted = self.drafted.gather(-1, choice.clamp(max=width - 1))
        token = torch.where(choice < width, drafted, choice - width)
        return torch.where(choice == weights.shape[-1] - 1, -1, token)[..., 0], position[..., 0]
