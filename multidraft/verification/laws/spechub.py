"""Two drafts of which one is always the most likely token (SpecHub, Sun et al., 2024)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.distributions import most_likely
from multidraft.verification.law import Law, one_hot, without
from multidraft.verification.laws.anchored import optimal_anchored


def optimal_spechub(
    target: Float[Tensor, "*batch vocab"], draft: Float[Tensor, "*batch vocab"], drafts: int = 2
) -> Float[Tensor, "*batch"]:
    """Largest acceptance rate with SpecHub's two drafts.

    The first draft is drawn from `q = draft`. If it is the most likely token `a`, the second is drawn from `q` without
    `a`; otherwise the second is `a`. So the set `{a, i}` is drafted with probability

        q_i + q_a q_i / (1 - q_a) = q_i / (1 - q_a)

    which is the law of `a` and one draw from `q` without `a`: SpecHub and the greedy law with two drafts propose the
    same sets, and `Q(H) = sum_{i in H, i != a} q_i / (1 - q_a)` for `H` that contains `a`, otherwise zero. Its best `H`
    is found token by token:

        alpha* = p_a + sum_{i != a} min(p_i, q_i / (1 - q_a))

    Ties for `a` go to the lower token id. A one-hot draft proposes `a` alone. `target` may sum to less than one; the
    result has its dtype. Raises AdviceError for other than two drafts.

    SpecHub (Sun et al., 2024); Towards Optimal Multi-Draft Speculative Decoding, section 5.3, with its eq. (21)
    corrected as in docs/theory.md, section 6.

    >>> p, q = torch.tensor([0.25, 0.5, 0.25]), torch.tensor([0.5, 0.25, 0.25])
    >>> optimal_spechub(p, q)
    tensor(1.)
    """
    if drafts != 2:
        raise AdviceError(f"SpecHub proposes exactly two drafts, not {drafts}; law='anchored' is its relative for more")
    return optimal_anchored(target, draft, drafts=2, anchors=1, top_up=False)


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
        return torch.where(drafted == top, without(draft, top), one_hot(draft, top))
