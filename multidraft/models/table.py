"""A toy model with known conditionals: the decoding loop can be tested exactly, without weights."""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.models.prefix import Prefix, PrefixModel


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
