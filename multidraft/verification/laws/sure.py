"""Laws of which all drafts are sure but one at most; their optimum is that of anchors (`laws.anchored`)."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.distributions import most_likely
from multidraft.verification.law import Law, Staged, one_hot, without
from multidraft.verification.laws.anchored import optimal_anchored
from multidraft.verification.precision import Rates, Rows, Tuples

Counts = int | Int[Tensor, "*batch"]


def optimal_top(target: Rows, draft: Rows, drafts: Counts) -> Rates:
    """Acceptance rate of the `drafts` most likely tokens of `draft`: nothing is random, so it is their target mass.

    Ties go to the lower token id, and a token without draft probability is never drafted. `target` may sum to less than
    one; the result has its dtype. Raises AdviceError if the shapes differ.

    Towards Optimal Multi-Draft Speculative Decoding, section 5, without its last, random draft.

    >>> optimal_top(torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.5]), drafts=1)
    tensor(0.2500)
    """
    return optimal_anchored(target, draft, drafts, anchors=drafts, top_up=False)


@dataclass(frozen=True)
class Top(Law):
    """x_1, .., x_n are the n most likely tokens, with probability one: as most engines draft."""

    name = "top"
    optimal = staticmethod(optimal_top)
    draws_one = False

    def conditional(self, draft: Rows, drafted: Int[Tensor, "*batch past"]) -> Rows:
        """One-hot at the most likely token that is not drafted yet."""
        return one_hot(draft, most_likely(draft, self.drafts)[..., drafted.shape[-1]][..., None])

    def draw_all(self, draft: Rows, uniform: Tensor) -> Tuples:
        """All positions at once; the uniform numbers are not needed."""
        return most_likely(draft, self.drafts)


def optimal_greedy(target: Rows, draft: Rows, drafts: Counts) -> Rates:
    """Largest acceptance rate of one draw beside n - 1 anchors.

    Towards Optimal Multi-Draft Speculative Decoding, Theorem 7.

    >>> optimal_greedy(torch.tensor([0.25, 0.75, 0.0]), torch.tensor([0.5, 0.25, 0.25]), drafts=2)
    tensor(0.7500)
    """
    anchors = max(drafts - 1, 0) if isinstance(drafts, int) else (drafts - 1).clamp(min=0)
    return optimal_anchored(target, draft, drafts, anchors, top_up=False)


@dataclass(frozen=True)
class Greedy(Staged):
    """x_1, .., x_{n-1} are the n - 1 most likely tokens; x_n is drawn from q renormalised without them.

    Towards Optimal Multi-Draft Speculative Decoding, Section 5.
    """

    name = "greedy"
    optimal = staticmethod(optimal_greedy)

    @property
    def has_sure(self) -> bool:
        """Whether anything is drafted beside the draw."""
        return self.drafts > 1

    def sure_tokens(self, draft: Rows) -> Int[Tensor, "*batch sure"]:
        """The n - 1 most likely tokens."""
        return most_likely(draft, self.drafts - 1)

    def parts(self, drafted: Any) -> tuple[Any, Any, Any]:
        """The sure tokens, then the draw."""
        n = self.drafts - 1
        return drafted[..., :n], drafted[..., n : n + 1], drafted[..., n + 1 :]

    def conditional(self, draft: Rows, drafted: Int[Tensor, "*batch past"]) -> Rows:
        """One-hot at the next most likely token, and for the last position what is left of q."""
        j = drafted.shape[-1]
        return (
            without(draft, drafted) if j == self.drafts - 1 else one_hot(draft, self.sure_tokens(draft)[..., j : j + 1])
        )


def optimal_spechub(target: Rows, draft: Rows, drafts: Counts = 2) -> Rates:
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
    if torch.as_tensor(drafts != 2).any():
        raise AdviceError(f"SpecHub proposes exactly two drafts, not {drafts}; law='anchored' is its relative for more")
    return optimal_greedy(target, draft, 2)


@dataclass(frozen=True)
class SpecHub(Greedy):
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

    def conditional(self, draft: Rows, drafted: Int[Tensor, "*batch past"]) -> Rows:
        """q at first; then the most likely token, or q without it where it is there already."""
        if drafted.shape[-1] == 0:
            return draft
        top = most_likely(draft, 1)
        return torch.where(drafted == top, without(draft, top), one_hot(draft, top))
