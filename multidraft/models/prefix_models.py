"""Models without weights, which see a node's whole prefix, and a toy among them whose conditionals are known."""

from abc import abstractmethod
from collections.abc import Callable
from functools import cache
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.models.reader import Lists, Reader, Row, Scored, count_scored
from multidraft.models.scores import Scores

TokenPrefix = tuple[int, ...]


class PrefixModel(Reader):
    """A language model given by `next_token`, a function from a row's prefix to the next token's probabilities.

    Logits are their logarithms, -inf for zero.
    """

    dtype: ClassVar[torch.dtype] = torch.float32
    looks_back: int | None = None  # kept tokens, the last ones, that `next_token` looks at; None for all

    def __init__(self, vocabulary: int):
        self.vocabulary = vocabulary

    @abstractmethod
    def next_token(self, row: int, prefix: TokenPrefix) -> Float[Tensor, " vocabulary"]:
        """Probabilities of the token that follows `prefix`."""

    def encode(self, tokens: list[int]) -> list[int]:
        return [token if token < self.vocabulary else 0 for token in tokens]  # padding of a larger one: next to never

    def _read(self, tokens: Lists, parents: Lists, scored: Scored) -> Float[Tensor, "rows new vocabulary"] | Scores:
        counts = [count_scored(scored, len(new)) for new in tokens]
        prefixes = [self.prefixes(row, count) for row, count in zip(self.rows, counts, strict=True)]
        return self.scores(prefixes, max(counts, default=0))

    def prefixes(self, row: Row, count: int) -> list[TokenPrefix]:
        """The tokens up to each of a row's last pending ones."""
        nodes, kept = range(len(row.tokens) - count, len(row.tokens)), self.last_kept(row)
        return [(*kept, *(row.tokens[place] for place in row.path(node))) for node in nodes]

    def last_kept(self, row: Row) -> list[int]:
        """The last kept tokens of a row, as many as are looked at."""
        return row.kept if self.looks_back is None else row.kept[max(len(row.kept) - self.looks_back, 0) :]

    def scores(self, prefixes: list[list[TokenPrefix]], width: int) -> Float[Tensor, "rows new vocabulary"] | Scores:
        """The logits after each row's prefixes, of which no row has more than `width`."""
        logits = torch.zeros(len(prefixes), width, self.vocabulary, dtype=self.dtype)
        for row, row_prefixes in enumerate(prefixes):
            for place, prefix in enumerate(row_prefixes):
                logits[row, place] = self.next_token(row, prefix).log()
        return logits


class TableModel(PrefixModel):
    """A language model given by a function from a prefix (a tuple of tokens) to the next token's probabilities.

    Logits are float64.
    """

    dtype = torch.float64

    def __init__(self, conditional: Callable[[TokenPrefix], Tensor], vocabulary: int):
        super().__init__(vocabulary)
        self.conditional = conditional

    def next_token(self, row: int, prefix: TokenPrefix) -> Float[Tensor, " vocabulary"]:
        return self.conditional(prefix)

    def new(self, capacity: int) -> "TableModel":
        return TableModel(self.conditional, self.vocabulary)


def random_table(vocabulary: int, depth: int, seed: int, concentration: float = 1.0) -> Callable[[TokenPrefix], Tensor]:
    """A conditional that depends on the last `depth` tokens, each row drawn once from a symmetric Dirichlet law.

    A small `concentration` gives peaked rows.  The draw depends on seed and tokens only, not on the order of the calls.
    """

    @cache
    def row(suffix: TokenPrefix) -> Tensor:
        # tokens count from 1 because numpy does not tell a seed from the same seed followed by zeros
        generator = np.random.default_rng([seed, *(token + 1 for token in suffix)])
        return torch.from_numpy(generator.dirichlet(np.full(vocabulary, concentration)))

    return lambda prefix: row(prefix[max(len(prefix) - depth, 0) :])


def answers_prompts(target: Reader) -> bool:
    """Whether reading prompts to their ends saves a pass; one of a model without weights is free: trees come first."""
    return not isinstance(target, PrefixModel)
