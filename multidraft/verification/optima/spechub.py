"""The optimal acceptance rate of SpecHub's two drafts, of which one is always the most likely token."""

from jaxtyping import Float
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.optima.anchored import optimal_anchored


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

    >>> import torch
    >>> p, q = torch.tensor([0.25, 0.5, 0.25]), torch.tensor([0.5, 0.25, 0.25])
    >>> optimal_spechub(p, q)
    tensor(1.)
    """
    if drafts != 2:
        raise AdviceError(f"SpecHub proposes exactly two drafts, not {drafts}; law='anchored' is its relative for more")
    return optimal_anchored(target, draft, drafts=2, anchors=1, top_up=False)
