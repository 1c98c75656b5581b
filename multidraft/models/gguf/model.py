"""GGUF models, read by llama.cpp, as a target or as a drafter.

A row has a sequence for every end of its pending tree, and all of them hold its kept tokens:

    kept      pending          sequences
    k k k k   a  b  c          1: k k k k a b c
                 d             2: k k k k a d        so a belongs to 1 and 2, and each token sees its own path
"""

import copy
from importlib.metadata import version
from pathlib import Path
from weakref import finalize

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import GenerationConfig

from multidraft.errors import AdviceError, check_integer, shown
from multidraft.models import base
from multidraft.models.base import Scored
from multidraft.models.gguf.file import Weights
from multidraft.models.gguf.memory import BYTES, Memory, Token

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


class GGUF:
    """A model of a GGUF file. A tree is one pass, in which a node carries the sequences of all ends below it.

    All readers that `fresh` makes share the weights and one memory, so that rows move between them without a copy. Keys
    and values are kept in `cache_type` (f16, bf16 or f32); `gpu_layers` counts those that a GPU computes, where
    llama.cpp was built for one (all, unless you say so). It computes with as many threads as torch may use.

    Raises AdviceError where the file is none, is cut short, or needs more memory than there is, and for recurrent and
    hybrid models, whose memory cannot be rolled back.
    """

    device = torch.device("cpu")  # where tokens are expected and logits are returned

    def __init__(self, path: str | Path, cache_type: str = "f16", gpu_layers: int | None = None):
        if cache_type not in BYTES:
            raise AdviceError(f"cache_type is {shown(cache_type)}; use one of {', '.join(BYTES)}")
        if gpu_layers is not None:
            check_integer(gpu_layers, "gpu_layers", 0)
        self.weights = Weights(Path(path).expanduser(), gpu_layers)
        self.memory, self.capacity = Memory(self.weights, cache_type), 0
        self.vocabulary, self.ids = self.weights.tokens.size, self.weights.tokens.ids
        self.context: int | None = self.weights.context
        self.rows: list[Row] = []  # none before the first forward

    @property
    def generation_config(self) -> GenerationConfig:
        """Where a text ends, which is all that such a file says of generation."""
        return GenerationConfig(eos_token_id=self.weights.ends or None)

    @property
    def identity(self) -> dict[str, str]:
        """What a plan of it depends on."""
        package = "llama_cpp_python"
        return {"digest": self.weights.digest, "dtype": self.memory.kind, package: version(package)}

    def fresh(self, capacity: int) -> "GGUF":
        reader = copy.copy(self)
        reader.rows, reader.capacity = [], capacity
        return reader

    def forward(
        self, tokens: list[list[int]], parents: list[list[int]], scored: Scored = "all"
    ) -> Float[Tensor, "rows new columns"]:
        """Read new tokens; those beyond the context are not read, and have logits of zero."""
        with self.memory.lock:
            if not self.rows:
                self.memory.reserve(len(tokens) * self.capacity, len(tokens))
                self.rows = [Row(self.memory) for _ in tokens]
            base.check_rows(len(tokens), len(self.rows))
            for row, new in zip(self.rows, parents, strict=True):
                base.check_parents(new, len(row.parents))
            own, end = self.weights.tokens, self.weights.context
            each = zip(self.rows, tokens, parents, strict=True)
            said = self.scores([row.grow(own.own(new), above, end) for row, new, above in each], scored)
            return torch.from_numpy(said)[..., : own.columns]

    def scores(self, rows: list[list[Token | None]], scored: Scored) -> Float[np.ndarray, "rows new vocabulary"]:
        """What llama.cpp says, and zero where nothing is read."""
        counts = [base.count_scored(scored, len(row)) for row in rows]
        slots = [
            (index, slot - len(row) + counts[index], token)
            for index, row in enumerate(rows)
            for slot, token in enumerate(row)
            if token
        ]
        shape = (len(rows), max(counts, default=0), self.weights.vocabulary)
        if not slots:
            return np.zeros(shape, np.float32)
        wanted = [place >= 0 for _, place, _ in slots]
        read = self.memory.read([token for *_, token in slots], wanted)
        if len(read) == shape[0] * shape[1]:
            return read.reshape(shape)
        scores, places = np.zeros(shape, np.float32), [(index, place) for index, place, _ in slots if place >= 0]
        scores[tuple(np.array(places, np.int64).reshape(-1, 2).T)] = read
        return scores

    def keep(self, chosen: list[list[int]]) -> None:
        base.check_paths(chosen, [row.parents for row in self.rows])
        with self.memory.lock:
            for row, path in zip(self.rows, chosen, strict=True):
                row.keep(path)

    def select(self, rows: list[int]) -> None:
        if len(set(rows)) < len(rows) and any(row.parents for row in self.rows):
            raise AdviceError("a row goes on as two while tokens are pending; keep some, or none, before")
        with self.memory.lock:
            old, again = self.rows, [row in rows[:index] for index, row in enumerate(rows)]
            pairs = zip(rows, again, strict=True)
            self.rows = [old[row].part(old[row].length) if twice else old[row] for row, twice in pairs]

    def join(self, other: "GGUF") -> None:
        base.check_same(self.memory, other.memory)
        base.check_nothing_pending(*(len(row.parents) for row in self.rows + other.rows))
        self.rows, other.rows = self.rows + other.rows, []

    def part(self, row: int, length: int, capacity: int) -> "GGUF":
        base.check_part(row, length, self.rows[row].length)
        part = self.fresh(capacity)
        with self.memory.lock:
            part.rows = [self.rows[row].part(length)]
        return part
