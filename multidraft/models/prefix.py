"""What models without weights share: they see a node's whole prefix as a tuple of tokens."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multidraft.models import Scored

Prefix = tuple[int, ...]


class PrefixModel(ABC):
    """A language model given by `next_token`, a function from a row's prefix to the next token's probabilities.

    Logits are logarithms, -inf for zero. A new token's prefix is its row's kept tokens and the pending ones that it
    sees, in slot order; positions are not needed.
    """

    context: int | None = None
    device = torch.device("cpu")  # of the arithmetic; logits are returned where the tokens come from
    dtype: ClassVar[torch.dtype] = torch.float32

    def __init__(self, vocabulary: int):
        self.vocabulary = vocabulary
        self.kept: list[Prefix] = []  # one a row; no rows before the first forward
        self.pending = torch.empty(0, 0, dtype=torch.int64)

    @abstractmethod
    def next_token(self, row: int, prefix: Prefix) -> Float[Tensor, " vocabulary"]:
        """Probabilities of the token that follows `prefix`."""

    @abstractmethod
    def fresh(self, capacity: int) -> "PrefixModel":
        """The same model with nothing read."""

    def begin(self, batch: int) -> None:
        """The first tokens are about to come, for this number of rows."""
        self.kept = [()] * batch

    def forward(
        self,
        tokens: Int[Tensor, "batch new"],
        positions: Int[Tensor, "batch new"],
        visible: Bool[Tensor, "batch new pending"],
        logits: Scored = True,
    ) -> Float[Tensor, "batch scored vocabulary"]:
        if not self.kept:
            self.begin(len(tokens))
            self.pending = tokens[:, :0].cpu()
        self.pending = torch.cat([self.pending, tokens.cpu()], 1)
        if not logits:
            return torch.empty(len(tokens), 0, self.vocabulary, dtype=self.dtype, device=tokens.device)
        if logits == "last":
            visible = visible[:, -1:]
        rows = enumerate(zip(self.kept, self.pending, visible.cpu(), strict=True))
        probabilities = [
            self.next_token(row, kept + tuple(slots[seen].tolist())) for row, (kept, slots, new) in rows for seen in new
        ]
        return torch.stack(probabilities).to(tokens.device, self.dtype).log().unflatten(0, visible.shape[:2])

    def keep(self, chosen: Int[Tensor, "batch kept"]) -> None:
        rows = zip(self.kept, self.pending, chosen.cpu(), strict=True)
        self.kept = [kept + tuple(slots[path[path >= 0]].tolist()) for kept, slots, path in rows]
        self.pending = self.pending[:, :0]

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        if self.kept:
            self.kept = [self.kept[row] for row in rows.tolist()]
            self.pending = self.pending[rows.cpu()]

    def join(self, other: "PrefixModel") -> None:
        self.kept, self.pending = self.kept + other.kept, torch.cat([self.pending, other.pending])

    def part(self, row: int, length: int, capacity: int) -> "PrefixModel":
        part = self.fresh(capacity)
        part.begin(1)
        part.kept, part.pending = [self.kept[row][:length]], torch.empty(1, 0, dtype=torch.int64)
        return part
