"""How logits become the distributions that are sampled from."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.sampling import from_logits
from multidraft.sampling.prefixes import Prefixes

if TYPE_CHECKING:
    from multidraft.sampling.processors import Processors


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
        from_logits.check_sampling(self.temperature, self.top_k, self.top_p)

    @property
    def is_softmax(self) -> bool:
        """Whether nothing is sorted and no processor asked, so that it may be done at every node at once."""
        return self.before is None and self.after is None and self.top_p is None

    @property
    def is_temperature(self) -> bool:
        """Whether a temperature is all that there is, 0 included."""
        return self.is_softmax and self.top_k is None

    @property
    def is_argmax(self) -> bool:
        """Whether the target's most likely token is all that there is."""
        return self.temperature == 0 and self.before is None and self.after is None

    @property
    def looks_back(self) -> bool:
        """Whether the sequences that lead to the nodes are needed."""
        return any(part is not None and part.looks_back for part in (self.before, self.after))

    def of_rows(self, rows: Sequence[int]) -> "Sampling":
        """The settings of some rows of a batch: they are the same for all."""
        return self

    def target(
        self, logits: Float[Tensor, "*batch vocabulary"], prefixes: Prefixes | None = None
    ) -> Float[Tensor, "*batch vocabulary"]:
        """The distribution that the output must have."""
        if self.before is not None:
            logits = self.before(logits, prefixes)
            if empty(logits).any():
                raise AdviceError("the processors leave no token with a finite logit; loosen what they forbid")
        return self.distribution(logits, prefixes)

    def distribution(
        self, logits: Float[Tensor, "*batch vocabulary"], prefixes: Prefixes | None
    ) -> Float[Tensor, "*batch vocabulary"]:
        """The same, from logits that have been processed."""
        result = from_logits.distribution(logits, self.temperature, self.top_k, self.top_p)
        if self.after is not None:
            result = self.after(result.log(), prefixes).softmax(-1)
        return result

    def draft(
        self, logits: Float[Tensor, "*batch vocabulary"], drafts: int, prefixes: Prefixes | None = None
    ) -> Float[Tensor, "*batch vocabulary"]:
        """The distribution that drafts are drawn from; at temperature 0 it still ranks the `drafts` top tokens.

        Where the processors leave the draft model nothing, which may have no logit for a token that they insist on, it
        drafts as though they were not there.
        """
        own = self.for_draft or self
        if own.before is not None:
            processed = own.before(logits, prefixes)
            logits = torch.where(empty(processed), logits, processed)
        return from_logits.ranked(logits, drafts) if own.temperature == 0 else own.distribution(logits, prefixes)

    def log_probabilities(
        self, logits: Float[Tensor, "*batch vocabulary"], prefixes: Prefixes | None = None
    ) -> Float[Tensor, "*batch vocabulary"]:
        """Logarithms of `target`; greedily, where that is a certainty, those at temperature 1."""
        return replace(self, temperature=self.temperature or 1.0).target(logits, prefixes).log()


class PerRow:
    """Settings of each row's own, where `Sampling` has the same for all: the first dimension of logits is the rows."""

    def __init__(self, rows: Sequence[Sampling]):
        self.rows = rows
        self.groups = defaultdict[Sampling, list[int]](list)  # rows with equal settings go settings_of_rows
        for row, sampling in enumerate(rows):
            self.groups[sampling].append(row)

    @property
    def is_softmax(self) -> bool:
        """Whether it may be done at every node at once, for all rows."""
        return all(sampling.is_softmax for sampling in self.groups)

    is_argmax = False  # of some rows at most

    def of_rows(self, rows: Sequence[int]) -> "Sampling | PerRow":
        """The settings of some rows, which may repeat: of logits with one line for each of them."""
        return settings_of_rows([self.rows[row] for row in rows])

    def target(
        self, logits: Float[Tensor, "rows *nodes vocabulary"], prefixes: Prefixes | None = None
    ) -> Float[Tensor, "rows *nodes vocabulary"]:
        """Every row's distribution that its output must have."""
        return self.each(lambda own, *lines: own.target(*lines), logits, prefixes)

    def draft(
        self, logits: Float[Tensor, "rows *nodes vocabulary"], drafts: int, prefixes: Prefixes | None = None
    ) -> Float[Tensor, "rows *nodes vocabulary"]:
        """Every row's distribution that drafts are drawn from."""
        return self.each(lambda own, lines, before: own.draft(lines, drafts, before), logits, prefixes)

    def log_probabilities(
        self, logits: Float[Tensor, "rows *nodes vocabulary"], prefixes: Prefixes | None = None
    ) -> Float[Tensor, "rows *nodes vocabulary"]:
        """Every row's logarithms of `target`."""
        return self.each(lambda own, *lines: own.log_probabilities(*lines), logits, prefixes)

    def each(
        self,
        evaluate: Callable[[Sampling, Tensor, Prefixes | None], Tensor],
        logits: Float[Tensor, "rows *nodes vocabulary"],
        prefixes: Prefixes | None,
    ) -> Float[Tensor, "rows *nodes vocabulary"]:
        """What the rows' settings make of their logits; `prefixes` has as many nodes of each row, row after row."""
        nodes = len(prefixes or ()) // len(self.rows)
        result = torch.empty_like(logits, dtype=torch.promote_types(logits.dtype, torch.float32))
        for sampling, rows in self.groups.items():
            own = prefixes and [prefix for row in rows for prefix in prefixes[row * nodes : (row + 1) * nodes]]
            result[rows] = evaluate(sampling, logits[rows], own)
        return result


def settings_of_rows(rows: list[Sampling]) -> Sampling | PerRow:
    """The settings of a batch: where all rows have the same, these, which is fastest."""
    return rows[0] if rows.count(rows[0]) == len(rows) else PerRow(rows)


def empty(logits: Float[Tensor, "*batch vocabulary"]) -> Bool[Tensor, "*batch 1"]:
    """Where no token has a chance."""
    return ~(logits > -torch.inf).any(-1, keepdim=True)
