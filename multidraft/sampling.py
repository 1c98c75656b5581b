"""How logits become the distributions that are sampled from."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multidraft import distributions
from multidraft.errors import AdviceError

if TYPE_CHECKING:
    from multidraft.processors import Processors


@dataclass(frozen=True)
class Prefix:
    """What a processor may look at: the whole sequence that ends at a node, and the prompt that it belongs to."""

    row: int  # of the prompts, each of which may have processors of its own
    tokens: Int[Tensor, " length"]

    def then(self, tokens: Int[Tensor, " more"]) -> "Prefix":
        """The sequence with more tokens; those of an empty slot (-1), which nobody asks for, become valid ones."""
        return replace(self, tokens=torch.cat([self.tokens, tokens.clamp(min=0)]))


@dataclass(frozen=True)
class Sampling:
    """Processors, then temperature, top-k and top-p, then filters; without processors and filters nothing is slower.

    The draft model gets the same, so that the two stay close, or what `for_draft` says: any draft law is exact.
    """

    temperature: float | int = 1.0
    top_k: int | None = None
    top_p: float | int | None = None
    before: "Processors | None" = None  # penalties, biases, constraints: they change logits
    after: "Processors | None" = None  # min-p and its like: they take the logarithm of a distribution
    for_draft: "Sampling | None" = None

    def __post_init__(self) -> None:
        distributions.check_sampling(self.temperature, self.top_k, self.top_p)

    @property
    def is_softmax(self) -> bool:
        """Whether nothing is sorted and no processor asked, so that it may be done at every node at once."""
        return self.before is None and self.after is None and self.top_p is None

    @property
    def looks_back(self) -> bool:
        """Whether the sequences that lead to the nodes are needed."""
        return any(part is not None and part.looks_back for part in (self.before, self.after))

    def target(
        self, logits: Float[Tensor, "*batch vocabulary"], prefixes: list[Prefix] | None = None
    ) -> Float[Tensor, "*batch vocabulary"]:
        """The distribution that the output must have."""
        if self.before is not None:
            logits = self.before(logits, prefixes)
            if empty(logits).any():
                raise AdviceError("the processors leave no token with a finite logit; loosen what they forbid")
        return self.distribution(logits, prefixes)

    def distribution(
        self, logits: Float[Tensor, "*batch vocabulary"], prefixes: list[Prefix] | None
    ) -> Float[Tensor, "*batch vocabulary"]:
        """The same, from logits that have been processed."""
        result = distributions.distribution(logits, self.temperature, self.top_k, self.top_p)
        if self.after is not None:
            result = self.after(result.log(), prefixes).softmax(-1)
        return result

    def draft(
        self, logits: Float[Tensor, "*batch vocabulary"], drafts: int, prefixes: list[Prefix] | None = None
    ) -> Float[Tensor, "*batch vocabulary"]:
        """The distribution that drafts are drawn from; at temperature 0 it still ranks the `drafts` top tokens.

        Where the processors leave the draft model nothing, which may have no logit for a token that they insist on, it
        drafts as though they were not there.
        """
        own = self.for_draft or self
        if own.before is not None:
            processed = own.before(logits, prefixes)
            logits = torch.where(empty(processed), logits, processed)
        return distributions.ranked(logits, drafts) if own.temperature == 0 else own.distribution(logits, prefixes)

    def log_probabilities(
        self, logits: Float[Tensor, "*batch vocabulary"], prefixes: list[Prefix] | None = None
    ) -> Float[Tensor, "*batch vocabulary"]:
        """Logarithms of `target`; greedily, where that is a certainty, those at temperature 1."""
        return replace(self, temperature=self.temperature or 1.0).target(logits, prefixes).log()


def empty(logits: Float[Tensor, "*batch vocabulary"]) -> Bool[Tensor, "*batch 1"]:
    """Where no token has a chance."""
    return ~(logits > -torch.inf).any(-1, keepdim=True)
