"""Each draft from a draft distribution of its own: several draft models, or one at several temperatures (SpecInfer)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.law import Law
from multidraft.verification.precision import Draft, Past, Rows


@dataclass(frozen=True)
class Distinct(Law):
    """P(x_1, .., x_n) = prod_j q_j(x_j), with `draft` of shape (..., n, vocabulary).

    Its optimum takes a search (`multidraft_research.solvers.distinct_optimum`).
    """

    name = "distinct"
    can_repeat = True
    per_draft_distributions = True
    is_single_draw = False  # `draft` has a dimension more

    def batch(self, draft: Tensor) -> torch.Size:
        """The leading shape, without the dimension of the draft distributions."""
        if draft.ndim < 2 or draft.shape[-2] != self.drafts:
            raise AdviceError(
                f"draft has shape {tuple(draft.shape)}; {self.drafts} distinct drafts need "
                f"(..., {self.drafts}, vocabulary)"
            )
        return draft.shape[:-2]

    def conditional(self, draft: Draft, drafted: Past) -> Rows:
        """q_j, whatever came before; a node of a tree that was drawn again begins again with the first."""
        return draft[..., drafted.shape[-1] % self.drafts, :]
