"""Rules from outside: functions that know nothing of laws and outcomes, called as one of ours."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.distributions import described
from multidraft.verification.law import Law
from multidraft.verification.outcome import Outcome, Rule

FORMS = (
    "a rule is a function rule(target, draft, drafted) that returns (accept, residual), "
    "or rule(target, draft, drafted, law) that returns an Outcome"
)


@dataclass(frozen=True)
class Outside:
    """A rule(target (N, V), draft (N, V), drafted (N, n)) that returns (accept (N, n), residual (N, V)).

    Where every position of the law is a draft, the function sees no empty one (-1): rows with fewer drafts are given to
    it with fewer columns, and a row without any emits from the target.
    """

    function: Callable[..., Any]

    def __call__(self, target: Tensor, draft: Tensor, drafted: Tensor, law: Law) -> Outcome:
        """The outcome for copies of the arguments, which the function may change as it likes."""
        p, x = target.reshape(-1, target.shape[-1]), drafted.reshape(-1, drafted.shape[-1])
        q = draft.reshape(-1, *draft.shape[target.ndim - 1 :])
        accept, residual = torch.zeros_like(x, dtype=p.dtype), p.clone()
        kept = (x >= 0) | (law.width > law.drafts)
        for columns in kept.unique(dim=0):
            rows, places = (kept == columns).all(-1).nonzero()[:, 0], columns.nonzero()[:, 0]
            if len(places):
                own = x[rows][:, places]
                some = q[rows][:, places % law.drafts] if law.several else q[rows]
                outcome = as_outcome(self.function(p[rows], some, own), p[rows], own)
                accept[rows[:, None], places], residual[rows] = outcome.accept, outcome.residual
        return Outcome(accept.reshape(drafted.shape), residual.reshape(target.shape), drafted)


def as_rule(function: Callable[..., Any]) -> Rule:
    """The function itself where it asks for the law, else an `Outside` that leaves it out."""
    names = arguments_of(function)
    if names is None or len(names) == 3:
        return Outside(function)
    if len(names) == 4:
        return function
    raise AdviceError(f"cannot call a rule with the arguments {', '.join(names)}; {FORMS}")


def arguments_of(function: Callable[..., Any]) -> list[str] | None:
    """The names of the arguments that it needs, None where that cannot be told."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in callables do not tell
        return None
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(one.kind in kinds for one in parameters):
        return None
    return [one.name for one in parameters if one.default is inspect.Parameter.empty]


def as_outcome(returned: Any, target: Tensor, drafted: Tensor) -> Outcome:
    """What a rule returned, checked."""
    pair = (returned.accept, returned.residual) if hasattr(returned, "accept") else returned
    if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(part, Tensor) for part in pair):
        raise AdviceError(f"the rule returned {described(returned)}; a rule returns two tensors (accept, residual)")
    for name, part, like in (("accept", pair[0], drafted), ("residual", pair[1], target)):
        if part.shape != like.shape or not part.dtype.is_floating_point:
            raise AdviceError(
                f"the rule's {name} has shape {tuple(part.shape)} and type {part.dtype}; "
                f"for these arguments it must be a float tensor of shape {tuple(like.shape)}"
            )
    return Outcome(pair[0].to(target.dtype), pair[1].to(target.dtype), drafted)
