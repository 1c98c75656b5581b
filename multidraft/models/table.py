"""A toy model with known conditionals: the decoding loop can be tested exactly, without weights."""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class TableModel:
    """A language model given by a function from a prefix (a tuple of tokens) to the next token's probabilities.

    Logits are float64 logarithms, -inf for zero. A new token's prefix is its row's kept tokens and the pending ones
    that it sees, in slot order; positions are not needed.
    """

    context: int | None = None
    device = torch.device("cpu")

    def __init__(self, conditional: Callable[[tuple[int, ...]], Tensor], vocabulary: int, batch: int = 1):
        self.conditional = conditional
        self.vocabulary = vocabulary
        self.kept: list[tuple[int, ...]] = [()] * batch
        self.pending = torch.empty(batch, 0, dtype=torch.int64)

    def forward(
        self,
        tokens: Int[Tensor, "batch new"],
        positions: Int[Tensor, "batch new"],
        visible: Bool[Tensor, "batch new pending"],
        logits: bool = True,
    ) -> Float[Tensor, "batch scored vocabulary"]:
        self.pending = torch.cat([self.pending, tokens], 1)
        if not logits:
            return torch.empty(len(tokens), 0, self.vocabulary)
        rows = zip(self.kept, self.pending, visible, strict=True)
        prefixes = [kept + tuple(slots[seen].tolist()) for kept, slots, new in rows for seen in new]
        probabilities = torch.stack([self.conditional(prefix) for prefix in prefixes]).double()
        return probabilities.log().unflatten(0, tokens.shape)

    def keep(self, chosen: Int[Tensor, "batch kept"]) -> None:
        rows = zip(self.kept, self.pending, chosen, strict=True)
        self.kept = [kept + tuple(slots[path[path >= 0]].tolist()) for kept, slots, path in rows]
        self.pending = self.pending[:, :0]

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        self.kept = [self.kept[row] for row in rows.tolist()]
        self.pending = self.pending[rows]


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
