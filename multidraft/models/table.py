"""Models without weights, which see a node's whole prefix, and a toy among them whose conditionals are known."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.models import base
from multidraft.models.base import Scored, Scores

Prefix = tuple[int, ...]


class PrefixModel(ABC):
    """A language model given by `next_token`, a function from a row's prefix to the next token's probabilities.

    Logits are their logarithms, -inf for zero.
    """

    context: int | None = None
    device = torch.device("cpu")
    dtype: ClassVar[torch.dtype] = torch.float32

    def __init__(self, vocabulary: int):
        self.vocabulary = vocabulary
        self.kept: list[Prefix] = []  # one a row; no rows before the first forward
        self.paths: list[list[Prefix]] = []  # by row and pending token: the pending tokens up to it, its own included
        self.parents: list[list[int]] = []

    @abstractmethod
    def next_token(self, row: int, prefix: Prefix) -> Float[Tensor, " vocabulary"]:
        """Probabilities of the token that follows `prefix`."""

    @abstractmethod
    def fresh(self, capacity: int) -> "PrefixModel":
        """Another reader of this model with nothing read."""

    def begin(self, kept: list[Prefix]) -> None:
        """Rows that have kept these tokens, and nothing else."""
        self.kept, self.paths, self.parents = kept, [[] for _ in kept], [[] for _ in kept]

    def forward(
        self, tokens: list[list[int]], parents: list[list[int]], scored: Scored = "all"
    ) -> Float[Tensor, "rows new vocabulary"] | Scores:
        if not self.kept:
            self.begin([()] * len(tokens))
        base.check_rows(len(tokens), len(self.kept))
        for own, above in zip(self.parents, parents, strict=True):
            base.check_parents(above, len(own))
        for paths, own, new, above in zip(self.paths, self.parents, tokens, parents, strict=True):
            own += above
            for token, parent in zip(new, above, strict=True):
                known = token if token < self.vocabulary else 0  # padding of a larger vocabulary: next to never
                paths.append((*(paths[parent] if parent >= 0 else ()), known))
        counts = [base.count_scored(scored, len(new)) for new in tokens]
        rows = zip(self.kept, self.paths, counts, strict=True)
        prefixes = [[kept + path for path in paths[len(paths) - count :]] for kept, paths, count in rows]
        return self.scores(prefixes, max(counts, default=0))

    def scores(self, prefixes: list[list[Prefix]], width: int) -> Float[Tensor, "rows new vocabulary"] | Scores:
        """The logits after each row's prefixes, of which no row has more than `width`."""
        logits = torch.zeros(len(prefixes), width, self.vocabulary, dtype=self.dtype)
        for row, own in enumerate(prefixes):
            for place, prefix in enumerate(own):
                logits[row, place] = self.next_token(row, prefix).log()
        return logits

    def keep(self, chosen: list[list[int]]) -> None:
        base.check_paths(chosen, self.parents)
        rows = zip(self.kept, self.paths, chosen, strict=True)
        self.begin([kept + paths[path[-1]] if path else kept for kept, paths, path in rows])

    def select(self, rows: list[int]) -> None:
        if self.kept:
            self.kept = [self.kept[row] for row in rows]
            self.paths, self.parents = [[*self.paths[row]] for row in rows], [[*self.parents[row]] for row in rows]

    def join(self, other: Any) -> None:
        base.check_nothing_pending(*map(len, (*self.parents, *other.parents)))
        self.begin(self.kept + other.kept)

    def part(self, row: int, length: int, capacity: int) -> "PrefixModel":
        part = self.fresh(capacity)
        part.begin([self.kept[row][:length]])
        return part


class TableModel(PrefixModel):
    """A language model given by a function from a prefix (a tuple of tokens) to the next token's probabilities.

    Logits are float64.
    """

    dtype = torch.float64

    def __init__(self, conditional: Callable[[Prefix], Tensor], vocabulary: int):
        super().__init__(vocabulary)
        self.conditional = conditional

    def next_token(self, row: int, prefix: Prefix) -> Float[Tensor, " vocabulary"]:
        return self.conditional(prefix)

    def fresh(self, capacity: int) -> "TableModel":
        return TableModel(self.conditional, self.vocabulary)


def random_table(
    vocabulary: int, depth: int, seed: int, concentration: float = 1.0
) -> Callable[[tuple[int, ...]], Tensor]:
    """A conditional that depends on the last `depth` tokens, each row drawn once from a symmetric Dirichlet law.

    A small `concentration` gives peaked rows.  The draw depends on seed and tokens only, not on the order of the calls.
    """

    @cache
    def row(suffix: tuple[int, ...]) -> Tensor:
        # tokens count from 1 because numpy does not tell a seed from the same seed followed by zeros
        generator = np.random.default_rng([seed, *(token + 1 for token in suffix)])
        return torch.from_numpy(generator.dirichlet(np.full(vocabulary, concentration)))

    return lambda prefix: row(prefix[len(prefix) - depth :] if len(prefix) > depth else prefix)
