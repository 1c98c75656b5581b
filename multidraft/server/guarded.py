"""Processors whose failure ends their own row alone: the step, which is everybody's, never sees it."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor
from transformers import LogitsProcessorList

from multidraft.errors import AdviceError
from multidraft.sampling.prefixes import Prefixes
from multidraft.sampling.processors import Processors
from multidraft.sampling.settings import Sampling, empty


def fault_of(sampling: Sampling) -> Exception | None:
    """What a row's processors have failed with."""
    parts = (sampling.before, sampling.after)
    return next((part.fault for part in parts if isinstance(part, Guarded) and part.fault is not None), None)


class Guarded(Processors):
    """A row's processors; after the first `fault` they leave logits as they are, and the row is to be ended."""

    def __init__(self, lists: Sequence[LogitsProcessorList]):
        super().__init__(lists)
        self.fault: Exception | None = None

    def __call__(
        self, logits: Float[Tensor, "*batch vocabulary"], prefixes: Prefixes | None
    ) -> Float[Tensor, "*batch vocabulary"]:
        if self.fault is not None:
            return logits
        try:
            result = super().__call__(logits, prefixes)
            if empty(result).any() or result.isnan().any() or result.isposinf().any():
                raise AdviceError("the settings leave no token with a finite logit, or make one infinite; loosen them")
        except Exception as fault:
            self.fault = fault
            return logits
        return result
