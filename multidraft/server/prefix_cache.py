"""What rows that have left have read, kept while there is room: a prompt that begins alike need not read it again."""

from dataclasses import dataclass

from multidraft.models.base import LanguageModel


@dataclass(frozen=True)
class Kept:
    """Both models with one row: the target has read these tokens, the draft model the first of them, if any."""

    tokens: list[int]
    target: LanguageModel
    draft: LanguageModel | None
    drafted: int  # how many the draft model has read


class PrefixCache:
    """Kept rows, the most recently used last; the least recently used leaves first."""

    def __init__(self) -> None:
        self.rows: list[Kept] = []

    @property
    def tokens(self) -> int:
        """Slots that are taken."""
        return sum(len(row.tokens) for row in self.rows)

    def put(self, new: Kept) -> None:
        """One more; those that it begins with are of no more use."""
        self.rows = [row for row in self.rows if common(row.tokens, new.tokens) < len(row.tokens)] + [new]

    def shrink(self, most: int) -> None:
        """Keep no more than so many tokens."""
        while self.rows and self.tokens > most:
            self.rows.pop(0)

    def find(self, prompt: list[int]) -> tuple[Kept, int] | None:
        """The row that begins with most of what a prompt begins with, and how many tokens that are."""
        lengths = [common(row.tokens, prompt) for row in self.rows]
        length = max(lengths, default=0)
        if not length:
            return None
        row = self.rows.pop(lengths.index(length))
        self.rows.append(row)
        return row, length


def common(tokens: list[int], others: list[int]) -> int:
    """The number of tokens that two lists both begin with.

    >>> common([3, 1, 4, 1], [3, 1, 5])
    2
    """
    pairs = enumerate(zip(tokens, others, strict=False))
    return next((place for place, (token, other) in pairs if token != other), min(len(tokens), len(others)))
