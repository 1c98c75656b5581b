"""The optimal transport problem behind verification: how often the best rule accepts, for every drafting law."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.drafting.anchored import Anchored, anchor_count
from multidraft.drafting.law import check_draft_probability, check_drafts
from multidraft.errors import AdviceError
from multidraft.errors.kinds import is_integer
from multidraft.numerics.distributions import check_distribution
from multidraft.transport.anchored import optimal_anchored
from multidraft.transport.distinct import optimal_distinct
from multidraft.transport.iid import optimal_iid
from multidraft.transport.linear_program import optimal_by_linear_program
from multidraft.transport.spechub import optimal_spechub
from multidraft.transport.top import optimal_top
from multidraft.transport.without_replacement import optimal_without_replacement

__all__ = [
    "LAWS",
    "optimal_acceptance_rate",
    "optimal_anchored",
    "optimal_by_linear_program",
    "optimal_distinct",
    "optimal_iid",
    "optimal_spechub",
    "optimal_top",
    "optimal_without_replacement",
]


def _greedy(target: Tensor, draft: Tensor, drafts: int | Tensor) -> Tensor:
    anchors = max(drafts - 1, 0) if isinstance(drafts, int) else (drafts - 1).clamp(min=0)
    return optimal_anchored(target, draft, drafts, anchors, top_up=False)


def _anchored(
    target: Tensor,
    draft: Tensor,
    drafts: int,
    anchors: int | Tensor | None = None,
    top_up: bool = True,
) -> Tensor:
    anchors = anchor_count(draft, drafts) if anchors is None else anchors
    if isinstance(anchors, int) and isinstance(drafts, int):
        anchors = min(anchors, drafts)  # as the law takes them
    return optimal_anchored(target, draft, drafts, anchors, top_up)


LAWS: dict[str, tuple[Callable[..., Tensor], set[str]]] = {  # the optimum, and which settings it understands
    "iid": (optimal_iid, set()),
    "without_replacement": (optimal_without_replacement, set()),
    "greedy": (_greedy, set()),
    "anchored": (_anchored, {"anchors", "top_up"}),
    "spechub": (optimal_spechub, set()),
    "top": (optimal_top, set()),
    "distinct": (optimal_distinct, set()),
}


def check_numbers(drafts: int | Tensor, draft_probability: float, settings: Mapping[str, Any]) -> None:
    """Raise unless the numbers of drafts and the law's settings make sense; none at all are allowed here."""
    if isinstance(drafts, Tensor):
        if drafts.dtype.is_floating_point or drafts.dtype == torch.bool or bool((drafts < 0).any()):
            raise AdviceError("drafts has entries that are no numbers of drafts; use whole numbers, at least 0")
    elif not is_integer(drafts) or drafts != 0:
        check_drafts(drafts)
    if draft_probability != 0:
        check_draft_probability(draft_probability)
    if not isinstance(settings.get("anchors"), Tensor):  # one number a row
        Anchored(1, **settings)


def optimal_acceptance_rate(
    target: Float[Tensor, "*batch vocab"],
    draft: Float[Tensor, "*drafting vocab"],
    law: str = "iid",
    *,
    drafts: int | Int[Tensor, "*batch"],
    draft_probability: float = 1.0,
    **settings: object,
) -> Float[Tensor, "*batch"]:
    """Largest acceptance rate that any lossless rule reaches when `drafts` tokens are drawn by a drafting law.

    With `P(H)` the target mass of a token set `H` and `Q(H)` the probability that all drafts fall into it,

        alpha* = min over H of  P(H) + 1 - Q(H)

    Each law has its own way to that minimum, in the function of its name: `optimal_iid`, `optimal_without_replacement`,
    `optimal_anchored` (also `greedy`), `optimal_spechub`, `optimal_top`, `optimal_distinct` (whose `draft` has one
    distribution a draft: (..., drafts, vocab)). `settings`: `draft_probability` (1.0) for
    `iid`; `anchors` (None: `anchor_count`) and `top_up` (True) for `anchored`. `target` may sum to less than one; the
    result has its dtype. Raises AdviceError for an unknown law, for a setting that the law does not have, and for what
    is no distribution.

    Towards Optimal Multi-Draft Speculative Decoding, eq. (8).

    >>> import torch
    >>> optimal_acceptance_rate(torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.5]), "iid", drafts=1)
    tensor(0.7500)
    """
    if law not in LAWS:
        raise AdviceError(
            f"no optimal acceptance rate is known for the drafting law {law!r}; choose one of {', '.join(LAWS)}, or "
            "list the law's tuples and pass them to optimal_by_linear_program (small vocabularies)"
        )
    optimum, understood = LAWS[law]
    if unknown := set(settings) - understood:
        raise AdviceError(
            f"the drafting law {law!r} has no setting {', '.join(sorted(unknown))}; "
            f"it understands {', '.join(sorted(understood)) or 'none beyond drafts'}"
        )
    check_distribution(target, "target", total_at_most_one=True)
    check_distribution(draft, "draft")
    check_numbers(drafts, draft_probability, settings)
    # With probability 1 - a nothing is drafted, which is in every H: min P(H) + a (1 - Q(H)) = a min P(H)/a + 1 - Q(H).
    if draft_probability == 0:
        return torch.zeros_like(target[..., 0])
    scaled = target if draft_probability == 1 else target / draft_probability
    optimal = optimum(scaled, draft, drafts, **settings)
    return draft_probability * optimal.clamp(max=1)  # the value of the empty H, which only a target over one exceeds
