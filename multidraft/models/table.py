"""Models without weights, which see a node's whole prefix, and a toy among them whose conditionals are known."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.models import base
from multidraft.models.base import Lists, Scored, Scores

Prefix = tuple[int, ...]


@dataclass
class Row:
    """One sequence: its kept tokens, and its pending tree."""

    kept: Prefix = ()
    memory: Any = None  # what a model has made of them
    parents: list[int] = field(default_factory=list)
    paths: list[Prefix] = field(default_factory=list)  # by pending token: those up to it, its own included


class PrefixModel(ABC):
    """A language model given by `next_token`, a function from a row's prefix to the next token's probabilities.

    Logits are their logarithms, -inf for zero.
    """

    context: int | None = None
    device = torch.device("cpu")
    dtype: ClassVar[torch.dtype] = torch.float32

    def __init__(self, vocabulary: int):
        self.vocabulary = vocabulary
        self.rows: list[Row] = []  # none before the first forward

    @abstractmethod
    def next_token(self, row: int, prefix: Prefix) -> Float[Tensor, " vocabulary"]:
        """Probabilities of the token that follows `prefix`."""

    @abstractmethod
    def new(self, capacity: int) -> "PrefixModel":
        """Another reader of this model with nothing read."""

    def forward(
        self, tokens: Lists, parents: Lists, scored: Scored = "all"
    ) -> Float[Tensor, "rows new vocabulary"] | Scores:
        self.rows = self.rows or [Row() for _ in tokens]
        base.check_rows(len(tokens), len(self.rows))
        prefixes = list[list[Prefix]]()
        for row, new, above in zip(self.rows, tokens, parents, strict=True):
            base.check_parents(above, len(row.parents))
            row.parents += above
            for token, parent in zip(new, above, strict=True):
                known_token = token if token < self.vocabulary else 0  # padding of a larger vocabulary: next to never
                row.paths.append((*(row.paths[parent] if parent >= 0 else ()), known_token))
            first = len(row.paths) - base.count_scored(scored, len(new))
            prefixes.append([row.kept + path for path in row.paths[first:]])
        return self.scores(prefixes, max(map(len, prefixes), default=0))

    def scores(self, prefixes: list[list[Prefix]], width: int) -> Float[Tensor, "rows new vocabulary"] | Scores:
        """The logits after each row's prefixes, of which no row has more than `width`."""
        logits = torch.zeros(len(prefixes), width, self.vocabulary, dtype=self.dtype)
        for row, row_prefixes in enumerate(prefixes):
            for place, prefix in enumerate(row_prefixes):
                logits[row, place] = self.next_token(row, prefix).log()
        return logits

    def commit(self, chosen: Lists) -> None:
        base.check_paths(chosen, [row.parents for row in self.rows])
        rows = zip(self.rows, chosen, strict=True)
        self.rows = [Row(row.kept + (row.paths[path[-1]] if path else ()), row.memory) for row, path in rows]

    def gather(self, rows: list[int]) -> None:
        if self.rows:  # a row that is asked for twice goes on as two
            old = self.rows
            self.rows = [copy.deepcopy(old[row]) if row in rows[:i] else old[row] for i, row in enumerate(rows)]

    def extend(self, other: Any) -> None:
        base.check_nothing_pending(*(len(row.parents) for row in (*self.rows, *other.rows)))
        self.rows = self.rows + other.rows

    def fork(self, row: int, length: int, capacity: int) -> "PrefixModel":
        fork = self.new(capacity)
        fork.rows = [Row(self.rows[row].kept[:length])]
        return fork


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

    def new(self, capacity: int) -> "TableModel":
        return TableModel(self.conditional, self.vocabulary)


def random_table(vocabulary: int, depth: int, seed: int, concentration: float = 1.0) -> Callable[[Prefix], Tensor]:
    """A conditional that depends on the last `depth` tokens, each row drawn once from a symmetric Dirichlet law.

    A small `concentration` gives peaked rows.  The draw depends on seed and tokens only, not on the order of the calls.
    """

    @cache
    def row(suffix: Prefix) -> Tensor:
        # tokens count from 1 because numpy does not tell a seed from the same seed followed by zeros
        generator = np.random.default_rng([seed, *(token + 1 for token in suffix)])
        return torch.from_numpy(generator.dirichlet(np.full(vocabulary, concentration)))

    return lambda prefix: row(prefix[max(len(prefix) - depth, 0) :])
