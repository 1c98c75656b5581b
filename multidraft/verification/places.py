"""Where a level of a tree is drawn."""

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, eq=False)
class Drawing:
    """The slots that draw, each with its number of drafts and the slot of its first child."""

    slots: list[int]
    counts: tuple[int, ...]
    first: list[int]

    def with_count(self, drafts: int) -> list[int]:
        """The slots that draw so many tokens."""
        return [slot for slot, count in zip(self.slots, self.counts, strict=True) if count == drafts]

    @cached_property
    def children(self) -> list[int]:
        """The slots of all children."""
        return [first + rank for first, count in zip(self.first, self.counts, strict=True) for rank in range(count)]
