"""Faults that end their own row alone: scores that make no distribution, a criterion that gives no answer."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError, shown_error
from multidraft.verification.distributions import describe, has_values

Lines = Float[Tensor, "lines vocabulary"]


class RowFault(AdviceError):
    """One row cannot go on: a model or a processor gave it scores that make no distribution. Other rows go on.

    `source` names what failed ("the target model", "processor MinPLogitsWarper"), `problem` says how. `row` is the row
    of the batch, `position` the index in the whole sequence of the token that was to be drawn. `generate` raises the
    fault when the other rows are done: `tokens` are the new tokens of all rows so far, `info` reports on the run.
    """

    def __init__(self, source: str, problem: str, row: int | None = None, position: int | None = None):
        super().__init__(source, problem, row, position)  # the arguments that pickle calls it with
        self.source, self.problem, self.row, self.position = source, problem, row, position
        self.tokens: list[Tensor] | None = None
        self.info: Any = None

    def at(self, row: int, position: int | None) -> "RowFault":
        """The fault with its row and position."""
        return RowFault(self.source, self.problem, row, position)

    def __str__(self) -> str:
        place = "" if self.row is None else f"row {self.row}, position {self.position}: "
        is_code = self.source.startswith(("processor", "criterion"))
        advice = "mend it, or change its settings" if is_code else "check its weights"
        return f"{place}{self.source} {self.problem}; {advice}"


Faults = dict[int, RowFault]  # by line


def distribution_error(line: Float[Tensor, " columns"], ids: Int[Tensor, " columns"] | None = None) -> str | None:
    """Why a line of scores makes no distribution, or None if it makes one.

    `ids` are the token ids of its columns, if they differ from the columns' numbers.

    >>> distribution_error(torch.tensor([0.0, float("nan")]))
    'gives token 1 the score nan'
    """
    largest = float(line.amax()) if len(line) else -math.inf
    if math.isfinite(largest):
        return None
    if largest == -math.inf:
        return "leaves no token with a finite score"
    column = int(line.argmax())
    return f"gives token {column if ids is None else int(ids[column])} the score {largest}"


def shape_error(scores: object, like: Lines) -> str | None:
    """How scores differ in type, shape, dtype, layout or device from those they should be like, or None."""
    if not isinstance(scores, Tensor):
        return f"returns {type(scores).__name__} instead of a tensor of scores"
    if scores.shape == like.shape and scores.device == like.device:
        if scores.layout == torch.strided and scores.dtype.is_floating_point:
            return None
    both = (scores, like)
    returned, expected = (f"{x.layout} scores of {x.dtype} and shape {tuple(x.shape)} on {x.device}" for x in both)
    return f"returns {returned} instead of {expected}"


def upcast(logits: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """The scores in float32, or unchanged if they are float64."""
    return logits if logits.dtype == torch.float64 else logits.float()


def holds(criterion: Callable[..., Any], sequence: Int[Tensor, "1 length"]) -> bool:
    """Whether a stopping criterion holds at the end of a sequence; raises RowFault if it fails or answers neither."""
    source = f"criterion {getattr(criterion, '__name__', type(criterion).__name__)}"
    try:
        answer = criterion(sequence, None)
    except Exception as error:
        raise RowFault(source, f"fails with {shown_error(error)}") from error
    is_flag = isinstance(answer, bool | np.bool_)
    if isinstance(answer, Tensor) and has_values(answer) and answer.numel() == 1:
        is_flag = not answer.is_floating_point() and not answer.is_complex()
    if not is_flag:
        raise RowFault(source, f"returns {describe(answer)} instead of one truth value")
    return bool(answer)
