"""How logits become the distributions that are sampled from."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from multidraft import distributions


@dataclass(frozen=True)
class Sampling:
    """Temperature, then top-k, then top-p; the draft model gets the same settings, so that the two stay close."""

    temperature: float | int = 1.0
    top_k: int | None = None
    top_p: float | int | None = None

    def __post_init__(self) -> None:
        distributions.check_sampling(self.temperature, self.top_k, self.top_p)

    def target(self, logits: Float[Tensor, "*batch vocabulary"]) -> Float[Tensor, "*batch vocabulary"]:
        """The distribution that the output must have."""
        return distributions.distribution(logits, self.temperature, self.top_k, self.top_p)

    def draft(self, logits: Float[Tensor, "*batch vocabulary"], drafts: int) -> Float[Tensor, "*batch vocabulary"]:
        """The distribution that drafts are drawn from; at temperature 0 it still ranks the `drafts` top tokens."""
        if self.temperature == 0:
            return distributions.ranked(logits, drafts)
        return distributions.distribution(logits, self.temperature, self.top_k, self.top_p)
