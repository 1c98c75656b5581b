"""Each draft from a draft distribution of its own: several draft models, or one at several temperatures (SpecInfer)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.distributions import normalise
from multidraft.verification.law import Law
from multidraft.verification.laws.best_set import best_set


def optimal_distinct(
    target: Float[Tensor, "*batch vocab"],
    draft: Float[Tensor, "*drafting vocab"],
    drafts: int | Int[Tensor, "*batch"],
) -> Float[Tensor, "*batch"]:
    """Largest acceptance rate that any lossless rule reaches with draft `j` drawn from `draft[..., j, :]`.

        alpha* = 1 + min over H of  target(H) - prod_j draft_j(H)

    To 1e-11 for every number of drafts and vocabulary size, by the search of `best_set` (at 32,000 tokens 30 ms a row
    for two drafts, one second for eight). Rows are solved one by one. `target` may sum to less than one; the result has
    its dtype. Raises AdviceError where shapes do not fit.

    Shapes: `draft` (..., drafts, vocab), one distribution a draft.

    Towards Optimal Multi-Draft Speculative Decoding, eq. (8); Global Resolution, Appendix C.

    >>> optimal_distinct(torch.tensor([0.25, 0.75]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]), drafts=2)
    tensor(0.2500)
    """
    if draft.ndim < 2 or draft.shape[:-2] + draft.shape[-1:] != target.shape:
        raise AdviceError(
            f"target {tuple(target.shape)} and draft {tuple(draft.shape)} do not fit; distinct drafts need "
            "(..., drafts, vocabulary), one distribution a draft"
        )
    if bool((torch.as_tensor(drafts) != draft.shape[-2]).any()):
        raise AdviceError(f"draft holds {draft.shape[-2]} distributions a row; {drafts} distinct drafts need as many")
    p = target.double().cpu().reshape(-1, target.shape[-1])
    q = normalise(draft.double().cpu().reshape(-1, *draft.shape[-2:]))
    rates = [optimum_of_row(*row) for row in zip(p, q, strict=True)]
    return torch.tensor(rates, dtype=torch.float64).reshape(target.shape[:-1]).to(target)


def optimum_of_row(target: Float[Tensor, " vocab"], draft: Float[Tensor, "drafts vocab"]) -> float:
    """The optimum for one target and its drafts."""
    best = torch.from_numpy(best_set(target.numpy(), draft.numpy()))
    return float((1 + target[best].sum() - draft[:, best].sum(-1).prod()).clamp(max=1))


@dataclass(frozen=True)
class Distinct(Law):
    """P(x_1, .., x_n) = prod_j q_j(x_j), with `draft` of shape (..., n, vocabulary)."""

    name = "distinct"
    optimal = staticmethod(optimal_distinct)
    repeats = True
    several = True
    draws_one = False  # `draft` has a dimension more

    def batch(self, draft: Tensor) -> torch.Size:
        """The leading shape, without the dimension of the draft distributions."""
        if draft.ndim < 2 or draft.shape[-2] != self.drafts:
            raise AdviceError(
                f"draft has shape {tuple(draft.shape)}; {self.drafts} distinct drafts need "
                f"(..., {self.drafts}, vocabulary)"
            )
        return draft.shape[:-2]

    def conditional(
        self, draft: Float[Tensor, "*batch drafts vocabulary"], drafted: Int[Tensor, "*batch past"]
    ) -> Float[Tensor, "*batch vocabulary"]:
        """q_j, whatever came before; a node of a tree that was drawn again begins again with the first."""
        return draft[..., drafted.shape[-1] % self.drafts, :]
