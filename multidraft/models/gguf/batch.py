"""What llama.cpp reads a pass from, kept from one pass to the next: making it anew costs more than filling it."""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

POINTERS = ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))
SIZE = ctypes.sizeof(ctypes.c_int32)


class Token(NamedTuple):
    """What is read: a token at a position of sequences, the first of which says what it sees."""

    token: int
    position: int
    sequences: list[int]


class Batch:
    """Room for so many tokens, which belong to so many sequences in all."""

    def __init__(self, library: Any, tokens: int, sequences: int):
        self.tokens, self.positions = (ctypes.c_int32 * tokens)(), (ctypes.c_int32 * tokens)()
        self.counts, self.scored = (ctypes.c_int32 * tokens)(), (ctypes.c_int8 * tokens)()
        self.sequences, self.places = (ctypes.c_int32 * sequences)(), (ctypes.c_void_p * tokens)()
        self.first = ctypes.addressof(self.sequences)
        places = ctypes.cast(self.places, POINTERS)
        self.whole = library.llama_batch(0, self.tokens, None, self.positions, self.counts, places, self.scored)

    def holds(self, tokens: int, sequences: int) -> bool:
        """Whether there is room."""
        return tokens <= len(self.tokens) and sequences <= len(self.sequences)

    def fill(self, tokens: Sequence[Token], wanted: Sequence[bool]) -> Any:
        """These tokens as llama.cpp takes them, and which of them it scores."""
        end = 0
        for index, ((token, position, sequences), scored) in enumerate(zip(tokens, wanted, strict=True)):
            self.tokens[index], self.positions[index], self.scored[index] = token, position, scored
            self.counts[index], self.places[index] = len(sequences), self.first + SIZE * end
            for sequence in sequences:
                self.sequences[end] = sequence
                end += 1
        self.whole.n_tokens = len(tokens)
        return self.whole
