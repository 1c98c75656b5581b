"""What a step samples with: settings that are compiled for one prompt. Without torch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from multidraft.sampling.ranges import POSITIVE_PROBABILITY, TEMPERATURE, TOP_K

if TYPE_CHECKING:
    from multidraft.sampling.processors import Processors


@dataclass(frozen=True)
class Sampling:
    """Processors, then temperature, top-k and top-p, then filters. Raises AdviceError on a number out of range.

    The draft model gets the same, so that the two stay close, or what `for_draft` says: any draft law is exact.
    """

    temperature: float | int = 1.0  # 0 for the most likely token
    top_k: int | None = None
    top_p: float | int | None = None
    before: "Processors | None" = None  # penalties, biases, constraints: they change logits
    after: "Processors | None" = None  # min-p and its like: they take the logarithm of a distribution
    for_draft: "Sampling | None" = None

    def __post_init__(self) -> None:
        TEMPERATURE("temperature", self.temperature)
        if self.top_k is not None:
            TOP_K("top_k", self.top_k)
        if self.top_p is not None:
            POSITIVE_PROBABILITY("top_p", self.top_p)

    @property
    def looks_back(self) -> bool:
        """Whether the sequences that lead to the nodes are needed."""
        return any(part is not None and part.looks_back for part in (self.before, self.after))
