"""Rules from outside: called with what they take, and what they return looked at before anybody computes with it.

Our own rules are held to their contract by tests, and nothing of this costs them time.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from multidraft.errors import AdviceError, quote, shown_error
from multidraft.verification.distributions import describe
from multidraft.verification.law import Law
from multidraft.verification.outcome import Outcome
from multidraft.verification.precision import MAX_MISSING_MASS

FORMS = (
    "a rule is a function rule(target, draft, drafted) that returns (accept, residual), "
    "or rule(target, draft, drafted, law) that returns an Outcome"
)
MAX_EXCESS = 1e-4  # of a sum of probabilities, as of a distribution's; and how far below zero rounding may take one
MAX_EMPTY_CLAIM = 1e-15  # what the decoder takes for nothing


@dataclass(frozen=True)
class Outside:
    """A rule(target, draft, drafted, law) that returns an Outcome, or what has its fields."""

    function: Callable[..., Any]
    name: str

    @property
    def within(self) -> float:
        """The total variation from the target that it states."""
        return getattr(self.function, "within", 0.0)

    def __call__(self, target: Tensor, draft: Tensor, drafted: Tensor, law: Law) -> Outcome:
        """The outcome, as the function returns it."""
        returned = self.call_rule(target, draft, drafted, law)
        parts = self.parts(returned, target, drafted)
        return returned if isinstance(returned, Outcome) else Outcome(*parts, drafted)

    def call_rule(self, *arguments: Any) -> Any:
        """What the function returns; raises AdviceError where it fails."""
        try:
            return self.function(*arguments)
        except AdviceError:
            raise
        except Exception as error:
            raise AdviceError(f"the rule {self.name} fails with {shown_error(error)}; mend it") from error

    def parts(self, returned: Any, target: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
        """What it accepts and what it leaves, in the target's type; raises AdviceError where they have another form."""
        pair = (returned.accept, getattr(returned, "residual", None)) if hasattr(returned, "accept") else returned
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(part, Tensor) for part in pair):
            what = describe(returned)
            raise AdviceError(f"the rule {self.name} returned {what}; a rule returns two tensors (accept, residual)")
        for field, part, like in (("accept", pair[0], drafted), ("residual", pair[1], target)):
            if part.shape != like.shape or not part.dtype.is_floating_point or part.device != like.device:
                raise AdviceError(
                    f"the {field} of the rule {self.name} has shape {tuple(part.shape)} and type {part.dtype} on "
                    f"{part.device}; for these arguments it must be a float tensor of shape {tuple(like.shape)} on "
                    f"{like.device}"
                )
        return pair[0].to(target.dtype), pair[1].to(target.dtype)


@dataclass(frozen=True)
class WithoutLaw(Outside):
    """A rule(target (N, V), draft (N, V), drafted (N, n)) that returns (accept (N, n), residual (N, V)).

    Where every position of the law is a draft, the function sees no empty one (-1): rows with fewer drafts are given to
    it with fewer columns, and a row without any emits from the target.
    """

    def __call__(self, target: Tensor, draft: Tensor, drafted: Tensor, law: Law) -> Outcome:
        """The outcome for copies of the arguments, which the function may change as it likes."""
        p, x = target.reshape(-1, target.shape[-1]), drafted.reshape(-1, drafted.shape[-1])
        q = draft.reshape(-1, *draft.shape[target.ndim - 1 :])
        accept, residual = torch.zeros_like(x, dtype=p.dtype), p.clone()
        kept = (x >= 0) | (law.width > law.drafts)
        for columns in kept.unique(dim=0):
            rows, places = (kept == columns).all(-1).nonzero()[:, 0], columns.nonzero()[:, 0]
            if len(places):
                drafts_of_rows = x[rows][:, places]
                draft_of_rows = q[rows][:, places % law.drafts] if law.per_draft_distributions else q[rows]
                parts = self.parts(self.call_rule(p[rows], draft_of_rows, drafts_of_rows), p[rows], drafts_of_rows)
                accept[rows[:, None], places], residual[rows] = parts
        return Outcome(accept.reshape(drafted.shape), residual.reshape(target.shape), drafted)


def as_rule(function: Any, name: str) -> Outside:
    """The function with what it takes: the law as well, or not."""
    if not callable(function):
        raise AdviceError(f"the rule is {quote(function)}; give a function")
    names = arguments_of(function)
    if names is not None and len(names) not in (3, 4):
        raise AdviceError(f"cannot call a rule with the arguments {', '.join(names)}; {FORMS}")
    if keywords := keywords_of(function):
        raise AdviceError(f"a rule is called by position, and this one asks for {', '.join(keywords)} by name; {FORMS}")
    return (Outside if names and len(names) == 4 else WithoutLaw)(function, name)


def arguments_of(function: Callable[..., Any]) -> list[str] | None:
    """The names of the arguments that it needs, None where that cannot be told."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = parameters_of(function)
    if parameters is None or any(parameter.kind in kinds for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty]


def keywords_of(function: Callable[..., Any]) -> list[str]:
    """The names of the arguments that it needs by name."""
    needed = [parameter for parameter in parameters_of(function) or [] if parameter.default is inspect.Parameter.empty]
    return [parameter.name for parameter in needed if parameter.kind is inspect.Parameter.KEYWORD_ONLY]


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """Its parameters; None where it does not tell, as some built-in callables."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def check_numbers(outcome: Outcome, target: Tensor, name: str, within: float) -> None:
    """Raise AdviceError where an outcome is the law of no token: no numbers, below zero, or of a wrong sum.

    A tuple's sum may be below one only where the target's is. What averages over tuples, the target's own weight, no
    single outcome can tell.
    """
    accept, residual, excess = outcome.accept.double(), outcome.residual.double(), max(MAX_EXCESS, within)
    total = accept.sum(-1) + residual.sum(-1)
    least = torch.minimum(accept.amin(-1), residual.amin(-1))
    lacking = (target.sum(-1, dtype=torch.float64) > 1 - MAX_MISSING_MASS) & (total < 1 - excess)
    empty_claims = accept.masked_fill(outcome.drafted >= 0, 0.0).amax(-1)
    good = (least >= -excess) & (total <= 1 + excess) & (empty_claims <= MAX_EMPTY_CLAIM) & ~lacking
    if not good.all():
        row = int((~good).reshape(-1).nonzero()[0])
        sums, lows, empty = (float(values.reshape(-1)[row]) for values in (total, least, empty_claims))
        what = f"claims {empty:.3g} for a position without a draft" if empty > MAX_EMPTY_CLAIM else "makes no law"
        raise AdviceError(
            f"the rule {name} {what} in row {row}: accept and residual sum to {sums:.6g}, the smallest is {lows:.4g}; "
            "mend it, and audit it (multidraft audit)"
        )
