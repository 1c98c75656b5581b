"""Independent draws from the draft distribution, with replacement (SpecTr; SpecInfer)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.distributions import descending, pick
from multidraft.verification.law import Staged
from multidraft.verification.loops import same_shape
from multidraft.verification.precision import Rates, Rows, Tuples


def optimal_iid(
    target: Rows, draft: Rows, drafts: int | Int[Tensor, "*batch"], draft_probability: float | Rates = 1.0
) -> Rates:
    """Largest acceptance rate that any lossless rule reaches with `drafts` i.i.d. draws from `draft`.

    With probability `draft_probability` the `n = drafts` tokens are drawn, otherwise none. A token set of draft mass
    `t` is then hit with probability `F(t) = draft_probability * (1 - (1 - t)**n)`. Sort the tokens that can be drafted
    by `target / draft`, largest first; with the prefix sums `P_k` of the target and `Q_k` of the draft

        alpha* = P_K + min(0, min_k F(Q_k) - P_k)

    which is `min over H of P(H) + 1 - Q(H)` read from the other end. `target` may sum to less than one.
    Computed in float64, returned in the dtype of `target`. Raises AdviceError if the shapes differ.

    Towards Optimal Multi-Draft Speculative Decoding, eq. (8) and section 4.2; in this form docs/theory.md.

    >>> optimal_iid(torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.5]), drafts=2)
    tensor(1.)
    >>> optimal_iid(torch.tensor([0.25, 0.75]), torch.tensor([1.0, 0.0]), drafts=2)
    tensor(0.2500)
    """
    same_shape("target and draft", target.shape, draft.shape)
    p, q = target.double(), draft.double()
    _, order = descending(torch.where(q > 0, p / q, -1.0))  # never drafted: last, and not counted
    P = torch.where(q > 0, p, 0.0).gather(-1, order).cumsum(-1)
    Q = q.gather(-1, order).cumsum(-1)
    missed = 1 - (Q / Q[..., -1:].clamp(min=torch.finfo(Q.dtype).tiny)).clamp(max=1)
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
    repeats = True

    def conditional(self, draft: Rows, drafted: Int[Tensor, "*batch past"]) -> Rows:
        """q, whatever came before."""
        return draft

    def draw_all(self, draft: Rows, uniform: Float[Tensor, "*batch width"]) -> Tuples:
        """All positions from one cumulative sum."""
        return pick(draft, uniform)
