"""What a step samples with: settings that are compiled for one prompt. Without torch."""

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from multidraft.sampling.ranges import POSITIVE_PROBABILITY, PROBABILITY, TEMPERATURE, TOP_K

if TYPE_CHECKING:
    from multidraft.sampling.processors import Processors


@dataclass(frozen=True)
class Sampling:
    """Processors, then temperature, top-k, top-p and min-p, then filters. Raises AdviceError on a number out of range.

    The draft model gets the same, so that the two stay close, or what `for_draft` says: any draft law is exact.
    """

    temperature: float | int = 1.0  # 0 for the most likely token
    top_k: int | None = None
    top_p: float | int | None = None
    _: KW_ONLY
    min_p: float | int | None = None  # tokens that are less likely than this part of the likeliest one are left out
    before: "Processors | None" = None  # penalties, biases, constraints: they change logits
    after: "Processors | None" = None  # typical-p and its like: they take the logarithm of a distribution
    for_draft: "Sampling | None" = None

    def __post_init__(self) -> None:
        TEMPERATURE("temperature", self.temperature)
        if self.top_k is not None:
            TOP_K("top_k", self.top_k)
        if self.top_p is not None:
            POSITIVE_PROBABILITY("top_p", self.top_p)
        if self.min_p is not None:
            PROBABILITY("min_p", self.min_p)

    @property
    def numbers(self) -> tuple[float | int, int | None, float | int | None, float | int | None]:
        """Temperature, top-k, top-p and min-p."""
        return self.temperature, self.top_k, self.top_p, self.min_p

    @property
    def looks_back(self) -> bool:
        """Whether the sequences that lead to the nodes are needed."""
        return any(part is not None and part.looks_back for part in (self.before, self.after))
