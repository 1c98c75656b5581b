"""One row in llama.cpp's memory: a sequence for every end of its pending tree, and all of them hold its kept tokens.

kept      pending          sequences
k k k k   a  b  c          1: k k k k a b c
             d             2: k k k k a d        so a belongs to 1 and 2, and each token sees its own path
"""

from weakref import finalize

from multidraft.models.gguf.batch import Token
from multidraft.models.gguf.memory import Memory

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

    def grow(self, tokens: list[int], parents: list[int], context: int) -> list[Token | None]:
        """What is to be read of new tokens that follow these slots; what lies beyond the context is not."""
        if not self.through and parents == [KEPT] and self.length < context:
            return [self.follow(tokens[0])]
        old = len(self.through)
        self.parents += parents
        for parent in parents:
            self.depths.append(self.depths[parent] + 1 if parent >= 0 else 1)
        real = [slot for slot, depth in enumerate(self.depths[old:]) if self.length + depth <= context]
        followed, carried = {parents[slot] for slot in real}, {slot: list[int]() for slot in real}
        for end in real:
            if old + end not in followed:
                self.carry(old + end, old, carried)
        self.through += [carried[slot][0] if slot in carried else NONE for slot in range(len(tokens))]
        places = [self.length + depth - 1 for depth in self.depths[old:]]
        rows = enumerate(zip(tokens, places, strict=True))
        return [Token(token, at, carried[slot]) if slot in carried else None for slot, (token, at) in rows]

    def follow(self, token: int) -> Token:
        """What is to be read of one token behind the kept ones, which is all that plain decoding reads."""
        sequence = self.ends[0] = self.ends.pop(KEPT)
        self.through, self.depths, self.parents = [sequence], [1], [KEPT]
        return Token(token, self.length, [sequence])

    def carry(self, end: int, old: int, carried: dict[int, list[int]]) -> None:
        """Give the path to an end, as far as it is new, a sequence."""
        path, place = list[int](), end
        while place >= old:
            path.append(place - old)
            place = self.parents[place]
        sequence = self.ends[end] = self.sequence_after(place)
        for slot in path:
            carried[slot].append(sequence)

    def sequence_after(self, place: int) -> int:
        """A sequence that goes on behind a slot: the one that ends there, or a copy."""
        if place in self.ends:
            return self.ends.pop(place)
        source, depth = (self.sequences[0], 0) if place == KEPT else (self.through[place], self.depths[place])
        self.sequences.append(self.memory.borrow())
        self.memory.copy(source, self.sequences[-1], self.length + depth)
        return self.sequences[-1]

    def keep(self, path: list[int]) -> None:
        """Append these slots, which lead from the kept tokens to one of the tree, and forget the others."""
        held = [slot for slot in path if self.through[slot] != NONE]
        stays = self.through[held[-1]] if held else self.sequences[0]
        self.length += len(held)
        if self.ends.get(held[-1] if held else KEPT) != stays:  # it goes on behind the path
            self.memory.cut(stays, self.length)
        for sequence in self.sequences:
            if sequence != stays:
                self.memory.drop(sequence)
        self.sequences[:] = [stays]
        self.settle()
