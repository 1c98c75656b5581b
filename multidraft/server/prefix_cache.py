"""What rows that have left have read, kept while there is room: a prompt that begins alike need not read it again."""

from dataclasses import dataclass

from multidraft.models import LanguageModel


@dataclass(frozen=True)
class Kept:
    """Both models with one row, which has read these tokens."""

    tokens: list[int]
    target: LanguageModel
    draft: LanguageModel | None

    @classmethod
    def of(cls, tokens: list[int], target: LanguageModel, draft: LanguageModel | None, row: int) -> "Kept":
        """A copy of what models in use have read of one row, of which these are the first tokens."""
        return cls(tokens, *parts(target, draft, row, len(tokens), len(tokens)))

    def part(self, length: int, capacity: int) -> tuple[LanguageModel, LanguageModel | None]:
        """Copies that have read the first tokens only, with room for more."""
        return parts(self.target, self.draft, 0, length, capacity)


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


def parts(
    target: LanguageModel, draft: LanguageModel | None, row: int, length: int, capacity: int
) -> tuple[LanguageModel, LanguageModel | None]:
    """The first tokens of one row in both models."""
    own = None if draft is None else draft.part(row, length, capacity)
    return target.part(row, length, capacity), own


def common(tokens: list[int], others: list[int]) -> int:
    """The number of tokens that two lists both begin with.

    >>> common([3, 1, 4, 1], [3, 1, 5])
    2
    """
    pairs = enumerate(zip(tokens, others, strict=False))
    return next((place for place, (token, other) in pairs if token != other), min(len(tokens), len(others)))
