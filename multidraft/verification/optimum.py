"""The optimum: the largest acceptance rate that any lossless rule reaches with drafts of a law."""

from typing import Any

import torch
from torch import Tensor

from multidraft.errors import AdviceError, check_integer
from multidraft.verification.distributions import check_distribution, has_values
from multidraft.verification.law import Law
from multidraft.verification.laws import LAWS, Counts
from multidraft.verification.precision import Draft, Rates, Rows

INTEGER_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def optimal_acceptance_rate(
    target: Rows, draft: Draft, law: str = "iid", *, drafts: Counts, draft_probability: float = 1.0, **settings: object
) -> Rates:
    """Largest acceptance rate that any lossless rule reaches when `drafts` tokens are drawn by a drafting law.

    With `P(H)` the target mass of a token set `H` and `Q(H)` the probability that all drafts fall into it,

        alpha* = min over H of  P(H) + 1 - Q(H)

    `settings` are the law's: `anchors` (None: `anchor_count`) and `top_up` (True) for `anchored`. `target` may sum to
    less than one; the result has its dtype. Raises AdviceError for an unknown law or setting, for one whose optimum is
    not known (`distinct`), and for what is no distribution.

    Towards Optimal Multi-Draft Speculative Decoding, eq. (8).

    >>> import torch
    >>> optimal_acceptance_rate(torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.5]), "iid", drafts=1)
    tensor(0.7500)
    """
    if law not in LAWS:
        known = ", ".join(LAWS)
        raise AdviceError(f"no optimal acceptance rate is known for the drafting law {law!r}; choose one of {known}")
    understood = set(LAWS[law].settings()) - {"draft_probability"}
    if unknown := set(settings) - understood:
        raise AdviceError(
            f"the drafting law {law!r} has no setting {', '.join(sorted(unknown))}; "
            f"it understands {', '.join(sorted(understood)) or 'none beyond drafts'}"
        )
    check_distribution(target, "target", total_at_most_one=True)
    check_distribution(draft, "draft")
    law_settings = settings | dict(draft_probability=1.0 if draft_probability == 0 else draft_probability)
    check_settings(LAWS[law], drafts, law_settings)
    check_counts(settings | {"drafts": drafts}, target.shape[:-1])
    return solve(LAWS[law], target, draft, drafts, draft_probability, settings)


def check_settings(law: type[Law], drafts: int | Tensor, settings: dict[str, Any]) -> None:
    """Raise unless a law can have these settings; the number of drafts may be zero here."""
    if not isinstance(drafts, Tensor):
        check_integer(drafts, "drafts", 0)
    elif drafts.dtype not in INTEGER_DTYPES or not has_values(drafts) or bool((drafts < 0).any()):
        raise AdviceError("drafts has entries that are no numbers of drafts; use whole numbers, at least 0")
    law(law.fixed_drafts or 1, **{key: x for key, x in settings.items() if not isinstance(x, Tensor)})


def check_counts(settings: dict[str, Any], rows: torch.Size) -> None:
    """Raise unless each number that is given row by row has one for every row, or one for all."""
    for name, counts in settings.items():
        if isinstance(counts, Tensor) and counts.shape not in (rows, torch.Size()):
            raise AdviceError(
                f"{name} has shape {tuple(counts.shape)}; give one number, or a tensor of shape {tuple(rows)}"
            )


def optimum(target: Rows, draft: Draft, law: Law) -> Rates:
    """The optimal acceptance rate for drafts of a law with its settings; raises AdviceError where none is known."""
    settings = {name: getattr(law, name) for name in law.settings() if name != "draft_probability"}
    return solve(type(law), target, draft, law.drafts, law.draft_probability, settings)


def solve(
    law: type[Law], target: Tensor, draft: Tensor, drafts: int | Tensor, probability: float, settings: dict[str, Any]
) -> Tensor:
    """The formula of a law, drafting with probability a: min P(H) + a (1 - Q(H)) = a min P(H)/a + 1 - Q(H)."""
    if law.optimal is None:
        raise AdviceError(
            f"no optimal acceptance rate is known for the drafting law {law.name!r}; for small vocabularies, "
            "md.scheme with the rule linear_program computes it"
        )
    if probability == 0:
        return torch.zeros_like(target[..., 0])
    optimal = law.optimal(target if probability == 1 else target / probability, draft, drafts, **settings)
    return probability * optimal.clamp(max=1)  # the value of the empty H, which only a target over one exceeds
