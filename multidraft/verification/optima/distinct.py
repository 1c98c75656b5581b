"""The optimal acceptance rate when each draft comes from a distribution of its own."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.optima.best_set import best_set


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
    q = draft.double().cpu().reshape(-1, *draft.shape[-2:])
    q = q / q.sum(-1, keepdim=True)
    rates = [_one(*row) for row in zip(p, q, strict=True)]
    return torch.tensor(rates, dtype=torch.float64).reshape(target.shape[:-1]).to(target)


def _one(target: Float[Tensor, " vocab"], draft: Float[Tensor, "drafts vocab"]) -> float:
    """The optimum of one row."""
    best = torch.from_numpy(best_set(target.numpy(), draft.numpy()))
    return float((1 + target[best].sum() - draft[:, best].sum(-1).prod()).clamp(max=1))
