"""Two drafts of which one is always the most likely token (SpecHub, Sun et al., 2024)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.distributions import most_likely
from multidraft.verification.law import Law, without
from multidraft.verification.optima.spechub import optimal_spechub


@dataclass(frozen=True)
class SpecHub(Law):
    """x_1 ~ q; if it is the most likely token, x_2 ~ q without it; otherwise x_2 is the most likely token.

    Towards Optimal MDSD, eq. (21), whose two cases overlap when read literally.
    """

    name = "spechub"
    optimal = staticmethod(optimal_spechub)
    fixed_drafts = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drafts != self.fixed_drafts:
            raise AdviceError(f"spechub drafts 2 tokens a node, not {self.drafts}; use drafts=2, or the law greedy")

    def conditional(
        self, draft: Float[Tensor, "*batch vocabulary"], drafted: Int[Tensor, "*batch past"]
    ) -> Float[Tensor, "*batch vocabulary"]:
        """q at first; then the most likely token, or q without it where it is there already."""
        if drafted.shape[-1] == 0:
            return draft
        top = most_likely(draft, 1)
        sure = torch.zeros_like(draft).scatter(-1, top.clamp(min=0), 1.0)
        return torch.where(drafted == top, without(draft, top), sure)
