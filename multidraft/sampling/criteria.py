"""Stopping criteria: each answers yes or no for a sequence; any other answer is a fault of that row."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Int
from torch import Tensor

from multidraft.errors import shown_error
from multidraft.sampling.gate import RowFault
from multidraft.verification.distributions import describe, has_values


def holds(criterion: Callable[..., Any], sequence: Int[Tensor, "1 length"]) -> bool:
    """Whether a criterion holds at the end of a sequence; raises RowFault if it fails or returns anything else."""
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
