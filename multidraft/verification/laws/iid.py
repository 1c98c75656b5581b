"""Independent draws from the draft distribution, with replacement (SpecTr; SpecInfer)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.distributions import descending, pick
from multidraft.verification.law import Staged
from multidraft.verification.loops import same_shape
from multidraft.verification.precision import SMALLEST_NORMAL, Past, Rates, Rows, Tuples


def optimal_iid(
    target: Rows, draft: Rows, drafts: int | Int[Tensor, "*batch"], draft_probability: float | Rates = 1.0
) -> Rates:
    """Largest acceptance rate with `drafts` i.i.d. draws from `draft`, none of them with probability 1 - a.

    A token set of draft mass `t` is hit with probability `F(t) = a (1 - (1 - t)**n)`. With the prefix sums `P_k` and
    `Q_k` of target and draft over the tokens that can be drafted, sorted by `target / draft`, largest first,

        alpha* = P_K + min(0, min_k F(Q_k) - P_k)

    In float64, returned in the dtype of `target`, which may sum to less than one. Raises AdviceError if the shapes
    differ. docs/theory.md, section 2.

    >>> optimal_iid(torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.5]), drafts=2)
    tensor(1.)
    """
    same_shape("target and draft", target.shape, draft.shape)
    p, q = target.double(), draft.double()
    _, order = descending(torch.where(q > 0, p / q, -1.0))  # never drafted: last, and not counted
    P = torch.where(q > 0, p, 0.0).gather(-1, order).cumsum(-1)
    Q = q.gather(-1, order).cumsum(-1)
    missed = 1 - (Q / Q[..., -1:].clamp(min=SMALLEST_NORMAL)).clamp(max=1)
    F = per_row(draft_probability, p) * (1 - missed ** per_row(drafts, p))
    return (P[..., -1] + (F - P).amin(-1).clamp(max=0)).to(target.dtype)


def per_row(setting: int | float | Tensor, like: Tensor) -> Tensor:
    """A number, or one number a row, as something that broadcasts against (..., vocab)."""
    return torch.as_tensor(setting, dtype=like.dtype, device=like.device)[..., None]


@dataclass(frozen=True)
class Iid(Staged):
    """P(x_1, .., x_n) = prod_j q(x_j). With one draft this is ordinary speculative sampling."""

    name = "iid"
    optimal = staticmethod(optimal_iid)
    can_repeat = True

    def conditional(self, draft: Rows, drafted: Past) -> Rows:
        """q, whatever came before."""
        return draft

    def draw_all(self, draft: Rows, uniform: Float[Tensor, "*batch width"]) -> Tuples:
        """All positions from one cumulative sum."""
        return pick(draft, uniform)
