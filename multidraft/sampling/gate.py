"""The gate: scores of models and processors become probabilities here, or end their own row with an error."""

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification import loops
from multidraft.verification.loops import compile_loop, lines, sum_of

Lines = Float[Tensor, "lines vocabulary"]
MIN_EXPONENT = np.float32(-126)  # of normal float32 numbers
HALF = np.float32(0.5)
ONE, A, B, C, D, E, F = (np.float32(math.log(2) ** n / math.factorial(n)) for n in range(7))


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


def softmax(scores: Lines, temperature: float | int = 1.0) -> tuple[Lines, list[int]]:
    """Every line's softmax at a temperature above 0, and the lines that have none, whose values are undefined.

    A line has a softmax if its largest score is finite: then no score is NaN or plus infinity. Sums are float64, so
    that a line sums to one within 1e-6 whatever its length.

    >>> softmax(torch.tensor([[0.0, 0.0], [0.0, torch.inf]]))[1]
    [1]
    """
    scores = upcast(scores)
    if not scores.numel():
        return scores, []
    is_looped = loops.usable(scores) and scores.dtype == torch.float32
    return (softmax_by_loops if is_looped else softmax_by_tensors)(scores, float(temperature))


def softmax_by_loops(scores: Lines, temperature: float) -> tuple[Lines, list[int]]:
    """`softmax` by compiled loops."""
    values = lines(scores)
    largest = values.max(-1)
    weights = softmax_kernel(values, largest, np.float32(1 / math.log(2) / temperature))
    return torch.from_numpy(weights), np.flatnonzero(~np.isfinite(largest)).tolist()


def softmax_by_tensors(scores: Lines, temperature: float) -> tuple[Lines, list[int]]:
    """`softmax` by tensor operations."""
    weights, largest = softmax_and_largest(scores, temperature)
    return weights, not_finite(largest)


def softmax_and_largest(scores: Lines, temperature: float) -> tuple[Lines, Float[Tensor, "lines 1"]]:
    """Every line's softmax and largest score, at which nobody has looked."""
    largest = scores.amax(-1, keepdim=True)
    weights = ((scores - largest) / temperature).exp_()
    weights /= weights.sum(-1, keepdim=True, dtype=torch.float64).to(weights.dtype)
    return weights, largest


@compile_loop
def softmax_kernel(values, largest, scale):
    """Every line's normalised weights: two to the power of `scale` times the distance from the largest score."""
    weights = np.empty_like(values)
    for row in range(len(values)):
        softmax_row(weights[row], values[row], largest[row], scale)
        weights[row] /= np.float32(sum_of(weights[row]))
    return weights


@compile_loop
def softmax_row(weights, logits, largest, scale):
    """Fill in two to the power of `scale` times each logit's distance from the largest."""
    powers = np.empty(logits.size, np.int32)
    for index in range(logits.size):
        exponent = (logits[index] - largest) * scale
        integer = np.floor(max(exponent, MIN_EXPONENT) + HALF)
        powers[index] = (np.int32(integer) + np.int32(127)) << np.int32(23)  # the bits of that power as a float32
        weights[index] = two_to(exponent - integer) if exponent >= MIN_EXPONENT else np.float32(0)
    weights *= powers.view(np.float32)


@compile_loop
def two_to(exponent):
    """Two to a power between -1/2 and 1/2, by its series, which is vectorised."""
    return ONE + exponent * (A + exponent * (B + exponent * (C + exponent * (D + exponent * (E + exponent * F)))))


def not_finite(largest: Float[Tensor, "lines 1"]) -> list[int]:
    """The lines whose largest score is not finite."""
    return [line for line, (value,) in enumerate(largest.tolist()) if not math.isfinite(value)]
