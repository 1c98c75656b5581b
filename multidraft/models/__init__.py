"""What a model must offer to the decoding loop, be it a target or a drafter.

A model holds, for each row of a batch, *kept* tokens (the row's sequence so far; rows may differ in length) and
*pending* ones (passed to `forward` since the last `keep`; every row has the same number of pending slots). Every kept
token is visible to all that come after.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Scored = bool | Literal["last"]  # of new tokens: all, none, or each row's last one


@runtime_checkable
class LanguageModel(Protocol):
    """A language model that reads a tree of tokens at once, and then keeps one path of it."""

    vocabulary: int  # size of the last dimension of the logits
    context: int | None  # the largest number of tokens in a sequence; None means no limit

    @property
    def device(self) -> torch.device:
        """Where tokens are expected and logits are returned."""
        ...

    def fresh(self, capacity: int) -> "LanguageModel":
        """The same model with nothing read, for sequences of up to `capacity` tokens with their trees."""
        ...

    def forward(
        self,
        tokens: Int[Tensor, "batch new"],
        positions: Int[Tensor, "batch new"],
        visible: Bool[Tensor, "batch new pending"],
        logits: Scored = True,
    ) -> Float[Tensor, "batch scored vocabulary"]:
        """Append `new` tokens to the pending ones and return their next-token logits.

        `positions` are depths in the sequence: the row's first token is at 0, so kept token number j is at j. One
        beyond the model's context counts as the last. `visible[b, i, j]` says whether new token i of row b sees pending
        slot j; `pending` counts all slots, the new ones included (they come last), and a token sees itself. With
        `logits=False` (reading a prompt) none is scored, with `"last"` only the last one is wanted. The first call
        settles the number of rows, and may bring no tokens.
        """
        ...

    def keep(self, chosen: Int[Tensor, "batch kept"]) -> None:
        """Append the pending slots `chosen[b]` to row b's kept tokens, in that order, and drop all other pending ones.

        A row that keeps fewer than the others has -1 at the end. `chosen` is on the CPU, where it was decided.
        """
        ...

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Go on with these rows of the batch only, in this order (a row that has finished leaves)."""
        ...

    def join(self, other: Any) -> None:
        """Put the rows of `other`, the same model at other texts, below this one's; nothing is pending in either."""
        ...

    def part(self, row: int, length: int, capacity: int) -> "LanguageModel":
        """The same model with one row, the first `length` kept tokens of this row here, which stays as it is."""
        ...


class Branches(NamedTuple):
    """New tokens of one row as plain numbers, each behind a pending one or the kept ones."""

    tokens: list[int]
    positions: list[int]
    counts: list[int]  # of the pending slots that each sees before itself
    before: list[int]  # the last of those, or -1


class Answering(ABC):
    """A model that takes plain numbers: of a tree, or where nothing but a temperature is asked for and it draws itself.

    A small model's pass takes no longer than a few dozen operations on tensors, which come to cold caches after it.
    """

    @abstractmethod
    def read(self, new: Branches, logits: Scored = True) -> Float[np.ndarray, "scored vocabulary"]:
        """As `forward`, where there is one row."""

    @abstractmethod
    def answer(self, roots: list[int], temperatures: Sequence[float], numbers: Sequence[float]) -> list[int]:
        """Read a token of every row behind its kept ones, and draw the next with a number at a temperature, or 0."""

    @abstractmethod
    def keep_roots(self) -> None:
        """Keep the one token that is pending in every row."""
