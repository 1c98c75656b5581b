"""One row in llama.cpp's memory: a sequence for every end of its pending tree, and all of them hold its kept tokens.

kept      pending          sequences
k k k k   a  b  c          1: k k k k a b c
             d             2: k k k k a d        so a belongs to 1 and 2, and each token sees its own path
"""

from weakref import finalize

import numpy as np
from jaxtyping import Bool, Int

from multidraft.errors import AdviceError
from multidraft.models.llama_cpp.memory import Memory, Token

KEPT = -1  # the place before the first pending slot: the last kept token
NONE = -1  # where a slot holds no token


class Row:
    """A row's kept tokens and its pending tree; what it has borrowed goes back when nobody holds it any more."""

    def __init__(self, memory: Memory, length: int = 0):
        self.memory, self.length = memory, length
        self.sequences: list[int] = []
        finalize(self, memory.returned.append, self.sequences)
        self.sequences.append(memory.borrow())
        self.settle()

    def settle(self) -> None:
        """Nothing is pending."""
        self.ends = {KEPT: self.sequences[0]}  # by slot the sequence that ends there, if any does
        self.through: list[int] = []  # by slot any sequence that holds it
        self.depths: list[int] = []  # by slot how many pending tokens lead to it, its own included
        self.parents: list[int] = []  # by slot the one before it

    def part(self, length: int) -> "Row":
        """Another row, which shares the first kept tokens of this one."""
        part = Row(self.memory, length)
        self.memory.copy(self.sequences[0], part.sequences[0], length)
        return part

    def grow(
        self,
        tokens: Int[np.ndarray, " new"],
        positions: Int[np.ndarray, " new"],
        seen: Bool[np.ndarray, "new pending"],
        context: int,
    ) -> dict[int, Token]:
        """What is to be read of new slots, by slot. One that stands elsewhere than behind all that it sees only fills a
        batch up; nor is any read that lies beyond the context.
        """
        old = len(self.through)
        own = seen[:, old:] | np.eye(len(tokens), dtype=bool)
        depths = seen[:, :old].sum(1) + own.sum(1)
        real = (positions == self.length + depths - 1) & (positions < context)
        ends = real & (own[real].sum(0) == 1)
        carried: list[list[int]] = [[] for _ in tokens]
        for end in np.flatnonzero(ends).tolist():
            sequence = self.ends[old + end] = self.sequence_after(seen[end, :old])
            for slot in np.flatnonzero(own[end]).tolist():
                carried[slot].append(sequence)
        self.through += [sequences[0] if sequences else NONE for sequences in carried]
        self.depths += depths.tolist()
        self.parents += parents(seen)
        found = zip(tokens.tolist(), positions.tolist(), carried, strict=True)
        return {slot: Token(*parts) for slot, parts in enumerate(found) if parts[2]}

    def sequence_after(self, seen: Bool[np.ndarray, " old"]) -> int:
        """A sequence that goes on behind the last of the old slots that are seen: what ends there, or a copy."""
        before = np.flatnonzero(seen)
        place = int(before[-1]) if len(before) else KEPT
        if place in self.ends:
            return self.ends.pop(place)
        source, depth = (self.sequences[0], 0) if place == KEPT else (self.through[place], self.depths[place])
        self.sequences.append(self.memory.borrow())
        self.memory.copy(source, self.sequences[-1], self.length + depth)
        return self.sequences[-1]

    def keep(self, path: list[int]) -> None:
        """Append these slots, which lead from the kept tokens to one of the tree, and forget the others."""
        if not self.has(path):
            raise AdviceError(f"the slots {path} are no path of the pending tree; keep those that lead to one of it")
        held = [slot for slot in path if self.through[slot] != NONE]
        stays = self.through[held[-1]] if held else self.sequences[0]
        self.length += len(held)
        self.memory.cut(stays, self.length)
        for sequence in self.sequences:
            if sequence != stays:
                self.memory.drop(sequence)
        self.sequences[:] = [stays]
        self.settle()

    def has(self, path: list[int]) -> bool:
        """Whether each of the slots follows the one before it."""
        pairs = zip(path, [KEPT, *path], strict=False)
        return all(0 <= slot < len(self.parents) and self.parents[slot] == before for slot, before in pairs)


def parents(seen: Bool[np.ndarray, "new pending"]) -> list[int]:
    """The last slot that each of the new ones sees before itself."""
    new, pending = seen.shape
    before = np.tril(seen, pending - new - 1)
    return np.where(before.any(1), pending - 1 - before[:, ::-1].argmax(1), KEPT).tolist()
