"""The caches of rows that have left, which are reused for prompts with the same prefix."""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from math import inf
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from multidraft.models.reader import Reader

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class KeptRow:
    """The caches of a row that has left: the target has read `tokens`, the draft model the first `drafted` of them."""

    tokens: list[int]
    target: Reader
    draft: Reader | None
    drafted: int

    @cached_property
    def text(self) -> Int[np.ndarray, " tokens"]:
        """The tokens, to compare them with those of every prompt."""
        return np.array(self.tokens, np.int64)


class KnownPrefix(NamedTuple):
    """What a kept row has of a prompt: `length` tokens for the target, `drafted` for the draft model."""

    row: KeptRow
    length: int
    drafted: int

    def for_head(self) -> "KnownPrefix":
        """The same for a head: where it does not hold the state at the last token, the target reads that one again."""
        draft, length = self.row.draft, self.drafted
        is_held = draft is not None and length > 0 and draft.observed_state(0, length - 1) is not None
        return self._replace(length=max(length - (not is_held), 0))


class PrefixCache:
    """Kept rows, the most recently used last; the least recently used leaves first."""

    def __init__(self) -> None:
        self.rows: list[KeptRow] = []

    @property
    def tokens(self) -> int:
        """Slots that are taken."""
        return sum(len(row.tokens) for row in self.rows)

    def put(self, new_row: KeptRow) -> None:
        """Add a row, and drop the rows that are prefixes of it."""
        self.rows = [row for row in self.rows if common(row.text, new_row.text) < len(row.tokens)] + [new_row]

    def shrink(self, max_tokens: float | int, max_rows: float | int = inf) -> None:
        """Keep no more than so many tokens, and rows."""
        while self.rows and (self.tokens > max_tokens or len(self.rows) > max_rows):
            self.rows.pop(0)

    def find(self, prompt: list[int]) -> KnownPrefix | None:
        """The longest prefix of a prompt that a row has."""
        text = np.array(prompt, np.int64)
        length, row = max(((common(row.text, text), row) for row in self.rows), key=itemgetter(0), default=(0, None))
        return KnownPrefix(row, length, min(length, row.drafted)) if row and length else None

    def use(self, used_rows: Collection[KeptRow]) -> None:
        """Note that rows are used; let no others make passes longer, and forget one for which that fails."""
        others = [row for row in self.rows if row not in used_rows]
        self.rows = [*others, *(row for row in self.rows if row in used_rows)]
        for row in others:
            try:
                for reader in filter(None, (row.target, row.draft)):
                    reader.set_aside()
            except Exception as error:  # where memory ends, say
                LOG.warning("the cache of a row that has ended is not kept", exc_info=error)
                self.rows = [other for other in self.rows if other is not row]


def common(tokens: Int[np.ndarray, " tokens"], others: Int[np.ndarray, " others"]) -> int:
    """The length of the common prefix of two texts.

    >>> common(np.array([3, 1, 4, 1]), np.array([3, 1, 5]))
    2
    """
    end = min(len(tokens), len(others))
    differs = tokens[:end] != others[:end]
    return int(differs.argmax()) if differs.any() else end
