"""The memory of GGUF models: cells of llama.cpp, and the sequences that rows borrow.

All rows of all readers share the cells of one llama.cpp context. A cell holds a token and belongs to sequences, which
are numbers that rows borrow: copying one marks cells and moves nothing, and cells of no sequence are free. A row has a
sequence for every end of its pending tree, and all of them hold its kept tokens:

    kept      pending          sequences
    k k k k   a  b  c          1: k k k k a b c
                 d             2: k k k k a d        so a belongs to 1 and 2, and each token sees its own path
"""

import ctypes
from collections import deque
from collections.abc import Sequence
from threading import RLock
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
import torch
from jaxtyping import Float, UInt8

from multidraft.errors import AdviceError
from multidraft.machine import available, format_bytes
from multidraft.models.gguf.file import LoadedModel
from multidraft.models.gguf.hidden import LayerOutputs
from multidraft.models.reader import ROOT, Row

BYTES = {"f16": 2, "bf16": 2, "f32": 4}  # of keys and values, by the name of their type
GROWTH_DIVISOR = 4  # a memory that is too small grows by a fourth at least
MIN_SIZE = 16  # sequences of a memory, and tokens of a batch, to begin with
CELL_ALIGNMENT = 256  # llama.cpp rounds the number of cells up to a multiple
NO_FLAGS = 0  # of what is done with a sequence's state
NO_FREE_CELLS = 1  # what llama_decode returns then
NONE = -1  # where a slot holds no token


class PlacedToken(NamedTuple):
    """What is read: a token at a position of sequences, the first of which says what it sees."""

    token: int
    position: int
    sequences: list[int]


class Memory:
    """The context of one model's weights; it grows when it is full. `kind` names the type of keys and values."""

    def __init__(self, weights: LoadedModel, kind: str):
        self.library, self.weights, self.kind = weights.library, weights, kind
        self.lock = RLock()
        self.cells = self.sequences = self.threads = 0
        self.free: list[int] = []
        self.returned: deque[list[int]] = deque()  # by rows that are gone, in whatever thread they went
        self.context: Any = None
        self.closing: Any = None
        self.outputs: LayerOutputs | None = None  # of layers whose hidden states are asked for

    def observe(self, states: Sequence[int]) -> None:
        """Note these hidden states of all tokens from now on, beside those that are noted already."""
        outputs = self.outputs
        noted = outputs.states if outputs else ()
        new = [state for state in states if state not in noted]
        if not new:
            return
        self.outputs = LayerOutputs(self.library.files, (*noted, *new), self.weights.size("embedding_length"))
        try:
            if self.context:
                self.renew(self.cells, self.sequences)
        except BaseException:
            self.outputs = outputs  # into which the context that stays goes on writing
            raise

    def reserve(self, cells: int = 0, sequences: int = 0) -> None:
        """Make room for so many cells and sequences in all, with all that has been held."""
        if self.context and cells <= self.cells and sequences <= self.sequences:
            return
        cells, sequences = max(cells, self.cells), max(sequences, self.sequences, MIN_SIZE)
        largest = self.library.most_sequences
        if sequences > largest:
            raise AdviceError(
                f"{self.library.name} tells {largest} paths of all rows apart; use fewer rows, or smaller trees"
            )
        cells = -(-cells // CELL_ALIGNMENT) * CELL_ALIGNMENT
        needed, free = cells * self.weights.numbers_of_token * BYTES[self.kind], available(torch.device("cpu"))
        if free is not None and needed > free:
            raise AdviceError(
                f"the keys and values of {cells} tokens of {self.weights.family} take {format_bytes(needed)} of memory "
                f"and {format_bytes(free)} are free; use fewer or shorter rows"
            )
        self.renew(cells, sequences)

    def renew(self, cells: int, sequences: int) -> None:
        """Make a context of this size, which holds all that has been held."""
        settings = self.settings(cells, sequences)
        context = self.library.llama_init_from_model(self.weights.pointer, settings)
        if not context:
            reason = self.library.last_error()
            raise AdviceError(
                f"{self.library.name} has no memory for {cells} tokens: {reason}; use fewer, or shorter rows"
            )
        closing = finalize(self, self.library.llama_free, context)
        close_old, new = self.closing, range(self.sequences, sequences)
        if self.context:
            self.move(context)
        self.context, self.closing, self.threads = context, closing, settings.n_threads
        self.cells, self.sequences = self.library.llama_n_ctx(context), sequences
        self.free += new
        self.held = self.library.llama_get_memory(context)
        self.in_context = self.library.cells(context)
        self.batch = LlamaBatch(self.library, sequences)
        if close_old:  # last: an interruption finds the one or the other
            close_old()

    def move(self, new: Any) -> None:
        """Let a new context hold what the old one does."""
        size = self.library.llama_state_get_size(self.context)
        state = (ctypes.c_uint8 * size)()
        written = self.library.llama_state_get_data(self.context, state, size)
        if self.library.llama_state_set_data(new, state, written) != written:
            raise RuntimeError(f"{self.library.name} has lost the memory of the rows: {self.library.last_error()}")

    def settings(self, cells: int, sequences: int) -> Any:
        """Those of a new context."""
        settings = self.library.context_settings(cells, sequences, self.kind)
        settings.n_threads = settings.n_threads_batch = torch.get_num_threads()
        if self.outputs:
            self.outputs.install(settings)
        return settings

    def borrow(self) -> int:
        """The number of a sequence that holds nothing."""
        self.tidy()
        if not self.free:
            largest = self.library.most_sequences
            # which refuses one too many
            self.reserve(sequences=max(min(2 * self.sequences, largest), self.sequences + 1))
        return self.free.pop()

    def tidy(self) -> None:
        """Forget what rows that are gone have held."""
        while self.returned:
            for sequence in self.returned.popleft():
                self.drop(sequence)

    def drop(self, sequence: int) -> None:
        """Take back a sequence, with what it holds alone."""
        self.cut(sequence, 0)
        self.free.append(sequence)

    def cut(self, sequence: int, start: int) -> None:
        """Forget what a sequence holds from a position on."""
        self.library.llama_memory_seq_rm(self.held, sequence, start, -1)

    def copy(self, source: int, sequence: int, end: int) -> None:
        """Let a sequence hold what another one does, before a position."""
        self.library.llama_memory_seq_cp(self.held, source, sequence, 0, end)

    def copy_out(self, sequence: int, count: int) -> UInt8[np.ndarray, " bytes"] | None:
        """What a sequence of so many tokens holds, which need not stay then: each pass computes with all cells.

        None where that is not all: of layers with a window llama.cpp copies the last tokens alone, behind which a
        shorter text could not be gone on with.
        """
        size = self.library.llama_state_seq_get_size(self.context, sequence, NO_FLAGS)
        if not 0 < count * self.weights.numbers_of_token * BYTES[self.kind] <= size:
            return None
        state = np.empty(size, np.uint8)
        written = self.library.llama_state_seq_get_data(self.context, state.ctypes.data, size, sequence, NO_FLAGS)
        return state[:written]

    def put_back(self, sequence: int, state: UInt8[np.ndarray, " bytes"], count: int) -> None:
        """Let a sequence hold so many tokens that were taken out."""
        while not self.in_context.make_room(count):
            self.grow(count)
        data = state.ctypes.data, len(state), sequence, NO_FLAGS
        if self.library.llama_state_seq_set_data(self.context, *data) != len(state):  # too few cells in a row are free
            self.grow(count)
            if self.library.llama_state_seq_set_data(self.context, *data) != len(state):
                raise RuntimeError(f"{self.library.name} has lost the memory of a row: {self.library.last_error()}")

    def read(self, tokens: Sequence[PlacedToken], is_scored: Sequence[bool]) -> Float[np.ndarray, "scored vocabulary"]:
        """Read tokens, those that others see before them; logits of some, in a copy, which no other pass overwrites."""
        self.reserve(len(tokens))
        self.tidy()
        if self.threads != (threads := torch.get_num_threads()):  # which plans choose
            self.library.llama_set_n_threads(self.context, threads, threads)
            self.threads = threads
        if self.outputs:
            self.outputs.begin(len(tokens))
        scores = np.empty((sum(is_scored), self.weights.vocabulary), np.float32)
        most, done = self.library.most_tokens, 0
        for start in range(0, len(tokens), most):
            piece = is_scored[start : start + most]
            self.decode(tokens[start : start + most], piece)
            new = scores[done : done + sum(piece)]
            if len(new):
                ctypes.memmove(new.ctypes.data, self.library.llama_get_logits(self.context), new.nbytes)
            done += len(new)
        return scores

    def decode(self, tokens: Sequence[PlacedToken], is_scored: Sequence[bool]) -> None:
        """Read tokens in one call, in a memory that grows until they fit."""
        while not self.in_context.make_room(len(tokens)):
            self.grow(len(tokens))
        while result := self.library.llama_decode(self.context, self.batch.fill(tokens, is_scored)):
            if result != NO_FREE_CELLS:
                raise RuntimeError(
                    f"{self.library.name} has failed to read {len(tokens)} tokens ({result}): "
                    f"{self.library.last_error()}"
                )
            self.grow(len(tokens))

    def grow(self, count: int) -> None:
        """Make room for so many tokens more, or for a part of those that are there."""
        self.reserve(self.cells + max(self.cells // GROWTH_DIVISOR, count))


class LlamaBatch:
    """A pass as llama.cpp takes it, in memory that stays: making it costs more than filling it."""

    def __init__(self, library: Any, sequences: int):
        self.library, self.sequences = library, sequences
        self.make(MIN_SIZE)

    def make(self, size: int) -> None:
        """Room for so many tokens."""
        self.size, self.batch = size, self.library.llama_batch_init(size, 0, self.sequences)
        self.free = finalize(self, self.library.llama_batch_free, self.batch)

    def fill(self, tokens: Sequence[PlacedToken], is_scored: Sequence[bool]) -> Any:
        """These tokens, and which of them are scored."""
        if self.size < len(tokens):
            self.free()
            self.make(2 * len(tokens))
        batch = self.batch
        ids, positions, counts, scored = batch.token, batch.pos, batch.n_seq_id, batch.logits
        for index, ((token, position, sequences), score) in enumerate(zip(tokens, is_scored, strict=True)):
            ids[index], positions[index], counts[index], scored[index] = token, position, len(sequences), score
            places = batch.seq_id[index]
            for place, sequence in enumerate(sequences):
                places[place] = sequence
        batch.n_tokens = len(tokens)
        return batch


class Sequences:
    """The sequences of one row, which hold its tokens in llama.cpp; they go back when nobody holds them any more."""

    def __init__(self, memory: Memory, length: int = 0):
        self.memory, self.length = memory, length  # of the kept tokens, up to the context
        self.numbers: list[int] = []
        finalize(self, memory.returned.append, self.numbers)
        self.numbers.append(memory.borrow())
        self.aside: UInt8[np.ndarray, " bytes"] | None = None  # what they have held, where it was taken out
        self.drop_pending()

    def set_aside(self) -> None:
        """Hold the kept tokens outside of what passes compute with, until they are forked."""
        if self.aside is None and self.length:
            self.aside = self.memory.copy_out(self.numbers[0], self.length)
            if self.aside is not None:
                self.memory.drop(self.numbers.pop())

    def drop_pending(self) -> None:
        """Nothing is pending."""
        self.ends = {ROOT: self.numbers[0]}  # by slot the sequence that ends there, if any does
        self.through: list[int] = []  # by slot any sequence that holds it
        self.states: list[Float[np.ndarray, "_ layers width"]] = []  # hidden ones by slot, pass by pass

    def states_of(self, path: list[int], shape: tuple[int, ...]) -> Float[np.ndarray, "_ layers width"]:
        """The hidden states of pending slots, of which `shape` says what none are."""
        passes = self.states or [np.empty(shape, np.float32)]
        return (passes[0] if len(passes) == 1 else np.concatenate(passes))[path]

    def fork(self, length: int) -> "Sequences":
        """Those of another row, which shares the first kept tokens of this one."""
        fork = Sequences(self.memory, min(length, self.length))
        if self.aside is None:
            self.memory.copy(self.numbers[0], fork.numbers[0], fork.length)
        else:
            self.memory.put_back(fork.numbers[0], self.aside, self.length)
            self.memory.cut(fork.numbers[0], fork.length)
        return fork

    def grow(self, row: Row, tokens: list[int], context: int) -> list[PlacedToken | None]:
        """What is to be read of the last pending tokens of a row; what lies beyond the context is not."""
        old = len(row.tokens) - len(tokens)
        parents, depths = row.parents[old:], row.depths[old:]
        real = [slot for slot, depth in enumerate(depths) if self.length + depth <= context]
        followed, carried = {parents[slot] for slot in real}, {slot: list[int]() for slot in real}
        for end in real:
            if old + end not in followed:
                self.carry(row, old + end, old, carried)
        self.through += [carried[slot][0] if slot in carried else NONE for slot in range(len(tokens))]
        slots = enumerate(zip(tokens, depths, strict=True))
        return [
            PlacedToken(token, self.length + depth - 1, carried[slot]) if slot in carried else None
            for slot, (token, depth) in slots
        ]

    def carry(self, row: Row, end: int, old: int, carried: dict[int, list[int]]) -> None:
        """Give the path to an end, as far as it is new, a sequence."""
        path, place = list[int](), end
        while place >= old:
            path.append(place - old)
            place = row.parents[place]
        sequence = self.ends[end] = self.sequence_after(row, place)
        for slot in path:
            carried[slot].append(sequence)

    def sequence_after(self, row: Row, place: int) -> int:
        """A sequence that goes on behind a slot: the one that ends there, or a copy."""
        if place in self.ends:
            return self.ends.pop(place)
        source, depth = (self.numbers[0], 0) if place == ROOT else (self.through[place], row.depths[place])
        self.numbers.append(self.memory.borrow())
        self.memory.copy(source, self.numbers[-1], self.length + depth)
        return self.numbers[-1]

    def commit(self, path: list[int]) -> None:
        """Append these slots, which lead from the kept tokens to one of the tree, and forget the others."""
        held = [slot for slot in path if self.through[slot] != NONE]
        stays = self.through[held[-1]] if held else self.numbers[0]
        self.length += len(held)
        if self.ends.get(held[-1] if held else ROOT) != stays:  # it goes on behind the path
            self.memory.cut(stays, self.length)
        dropped = [sequence for sequence in self.numbers if sequence != stays]
        self.numbers[:] = [stays]  # first: an interruption may lose a sequence, but nobody gives one back twice
        for sequence in dropped:
            self.memory.drop(sequence)
        self.drop_pending()
