"""The gate: scores of models and processors become probabilities here, or end their own row with an error."""

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.loops import compiled, lines, paired, sum_of

Lines = Float[Tensor, "lines vocabulary"]
LEAST = np.float32(-126)  # of the powers of two that float32 has in full precision
HALF = np.float32(0.5)
ONE, A, B, C, D, E, F = (np.float32(math.log(2) ** n / math.factorial(n)) for n in range(7))


class RowFault(AdviceError):
    """One row cannot go on: a model or a processor gave it scores that make no distribution. Other rows go on.

    `source` names who ("the target model", "processor MinPLogitsWarper"), `problem` what; `row` is the row of the batch
    and `position` the index, in the whole sequence, of the token that was to be drawn. `generate` raises it when the
    other rows are done: `tokens` are the new tokens of all rows as far as they came, `info` tells how the run went.
    """

    def __init__(self, source: str, problem: str, row: int | None = None, position: int | None = None):
        super().__init__(source, problem, row, position)  # what pickle calls it with
        self.source, self.problem, self.row, self.position = source, problem, row, position
        self.tokens: list[Tensor] | None = None
        self.info: Any = None

    def at(self, row: int, position: int | None) -> "RowFault":
        """The fault with its place."""
        return RowFault(self.source, self.problem, row, position)

    def __str__(self) -> str:
        place = "" if self.row is None else f"row {self.row}, position {self.position}: "
        is_code = self.source.startswith(("processor", "criterion"))
        advice = "mend it, or change its settings" if is_code else "check its weights"
        return f"{place}{self.source} {self.problem}; {advice}"


Faults = dict[int, RowFault]  # by line


def problem_of(line: Float[Tensor, " columns"], ids: Int[Tensor, " columns"] | None = None) -> str | None:
    """What keeps a line of scores from being a distribution's logits; None if nothing does.

    `ids` are the tokens of its columns, where these are others.

    >>> problem_of(torch.tensor([0.0, float("nan")]))
    'gives token 1 the score nan'
    """
    largest = float(line.amax()) if len(line) else -math.inf
    if math.isfinite(largest):
        return None
    if largest == -math.inf:
        return "leaves no token with a finite score"
    column = int(line.argmax())
    return f"gives token {column if ids is None else int(ids[column])} the score {largest}"


def wrong_form(scores: object, like: Lines) -> str | None:
    """What is wrong about the type, shape, precision or device of scores that should be like others."""
    if not isinstance(scores, Tensor):
        return f"returns {type(scores).__name__} instead of a tensor of scores"
    if scores.shape == like.shape and scores.device == like.device:
        if scores.layout == torch.strided and scores.dtype.is_floating_point:
            return None
    mine, wanted = (f"{x.layout} scores of {x.dtype} and shape {tuple(x.shape)} on {x.device}" for x in (scores, like))
    return f"returns {mine} instead of {wanted}"


def in_full(logits: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """The scores in float32, or in float64 where they are."""
    return logits if logits.dtype == torch.float64 else logits.float()


def softmax(scores: Lines, temperature: float | int = 1.0) -> tuple[Lines, list[int]]:
    """Every line's softmax at a temperature above 0, and which lines have none (theirs is undefined).

    A line has one where no score is NaN or plus infinity and one is finite, which its largest score tells alone. Sums
    are float64, so that a line sums to one within 1e-6 whatever its length and form.

    >>> softmax(torch.tensor([[0.0, 0.0], [0.0, torch.inf]]))[1]
    [1]
    """
    return soft_lines(in_full(scores), float(temperature)) if scores.numel() else (in_full(scores), [])


def soft_loops(scores: Lines, temperature: float) -> tuple[Lines, list[int]]:
    """As `soft_lines`, by compiled loops."""
    values = lines(scores)
    largest = values.max(-1)
    weights = soften_lines(values, largest, np.float32(1 / math.log(2) / temperature))
    return torch.from_numpy(weights), np.flatnonzero(~np.isfinite(largest)).tolist()


@paired(soft_loops, lambda scores, _: scores.dtype == torch.float32)
def soft_lines(scores: Lines, temperature: float) -> tuple[Lines, list[int]]:
    """As `softmax`."""
    largest = scores.amax(-1, keepdim=True)
    weights = ((scores - largest) / temperature).exp_()
    weights /= weights.sum(-1, keepdim=True, dtype=torch.float64).to(weights.dtype)
    return weights, not_finite(largest)


@compiled
def soften_lines(values, largest, scale):
    """Powers of two over their sum, of what the scores of every line are above the largest, times a scale."""
    weights = np.empty_like(values)
    for row in range(len(values)):
        soften(weights[row], values[row], largest[row], scale)
        weights[row] /= np.float32(sum_of(weights[row]))
    return weights


@compiled
def soften(weights, logits, largest, scale):
    """Two to the power of what logits are above the largest, times a scale."""
    powers = np.empty(logits.size, np.int32)
    for index in range(logits.size):
        exponent = (logits[index] - largest) * scale
        whole = np.floor(max(exponent, LEAST) + HALF)
        powers[index] = (np.int32(whole) + np.int32(127)) << np.int32(23)  # the bits of that power, as a float32
        weights[index] = two_to(exponent - whole) if exponent >= LEAST else np.float32(0)
    weights *= powers.view(np.float32)


@compiled
def two_to(part):
    """Two to a power between -1/2 and 1/2, by its series, which goes into vector instructions."""
    return ONE + part * (A + part * (B + part * (C + part * (D + part * (E + part * F)))))


def not_finite(largest: Float[Tensor, "lines 1"]) -> list[int]:
    """The lines whose largest score is not finite."""
    return [line for line, (value,) in enumerate(largest.tolist()) if not math.isfinite(value)]
