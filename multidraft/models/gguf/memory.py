"""The keys and values of one model: a single llama.cpp context, whose cells all rows of all readers share.

A cell holds one token and belongs to a set of sequences, which are numbers that rows borrow. Copying a sequence marks
cells, and moves nothing. Cells that belong to no sequence are free, wherever they lie.
"""

import ctypes
from collections import deque
from collections.abc import Sequence
from threading import RLock
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
import torch
from jaxtyping import Float

from multidraft.errors import AdviceError
from multidraft.machine import available, readable
from multidraft.models.gguf.file import Weights, last_error

BYTES = {"f16": 2, "bf16": 2, "f32": 4}  # of keys and values, by the name of their type
PASS = 512  # tokens that llama.cpp computes together; a longer batch is several passes
ROOM = 4  # a memory that is too small grows by a fourth at least
FEW = 16  # sequences to begin with
ALIGNED = 256  # llama.cpp rounds the number of cells up to a multiple
ADDRESS = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)  # a function that gives one as a number
FULL = 1  # what llama_decode says where it finds no cells


class Token(NamedTuple):
    """What is read: a token at a position of sequences, the first of which says what it sees."""

    token: int
    position: int
    sequences: list[int]


class Memory:
    """The context of one model's weights; it grows when it is full. `kind` names the type of keys and values."""

    def __init__(self, weights: Weights, kind: str):
        self.library, self.weights, self.kind = weights.library, weights, kind
        self.address_of_logits = ctypes.cast(self.library.llama_get_logits, ADDRESS)
        self.lock = RLock()
        self.cells = self.sequences = self.threads = 0
        self.free: list[int] = []
        self.returned: deque[list[int]] = deque()  # by rows that are gone, in whatever thread they went
        self.context: Any = None
        self.closing: Any = None
        self.batch: Batch | None = None

    def reserve(self, cells: int, sequences: int) -> None:
        """Make room for so many cells and sequences in all."""
        if cells > self.cells or sequences > self.sequences:
            self.open(max(cells, self.cells), max(sequences, self.sequences, FEW))

    def open(self, cells: int, sequences: int) -> None:
        """A context of this size, with all that the one before has held."""
        most = self.library.llama_max_parallel_sequences()
        if sequences > most:
            raise AdviceError(f"llama.cpp tells {most} paths of all rows apart; use fewer rows, or smaller trees")
        cells = -(-cells // ALIGNED) * ALIGNED
        needed, free = cells * self.weights.numbers_of_token * BYTES[self.kind], available(torch.device("cpu"))
        if free is not None and needed > free:
            raise AdviceError(
                f"the keys and values of {cells} tokens of {self.weights.family} take {readable(needed)} of memory and "
                f"{readable(free)} are free; use fewer or shorter rows"
            )
        settings = self.settings(cells, sequences)
        context = self.library.llama_init_from_model(self.weights.pointer, settings)
        if not context:
            raise AdviceError(f"llama.cpp has no memory for {cells} tokens: {last_error()}; use fewer, or shorter rows")
        closing = finalize(self, self.library.llama_free, context)
        if self.context:
            move(self.library, self.context, context)
            self.closing()
        self.free += range(self.sequences, sequences)
        self.context, self.closing, self.threads = context, closing, settings.n_threads
        self.cells, self.sequences = self.library.llama_n_ctx(context), sequences
        self.held, self.batch = self.library.llama_get_memory(context), None

    def settings(self, cells: int, sequences: int) -> Any:
        """Those of a context whose sequences share all cells, and can be cut anywhere."""
        settings = self.library.llama_context_default_params()
        settings.n_ctx = settings.n_batch = cells
        settings.n_ubatch, settings.n_seq_max = PASS, sequences
        settings.n_threads = settings.n_threads_batch = torch.get_num_threads()
        settings.type_k = settings.type_v = getattr(self.library, f"GGML_TYPE_{self.kind.upper()}")
        settings.kv_unified = settings.swa_full = settings.no_perf = True
        if self.kind == "f32":  # flash attention rounds to f16, whatever it is given
            settings.flash_attn_type = self.library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        return settings

    def borrow(self) -> int:
        """The number of a sequence that holds nothing."""
        self.tidy()
        if not self.free:
            self.open(self.cells, 2 * self.sequences)
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

    def read(self, tokens: Sequence[Token], wanted: Sequence[bool]) -> Float[np.ndarray, "scored vocabulary"]:
        """Read tokens, those that others see before them; logits of some, in a copy, which no other pass overwrites."""
        self.reserve(len(tokens), 0)
        self.tidy()
        if self.threads != (threads := torch.get_num_threads()):  # which plans choose
            self.library.llama_set_n_threads(self.context, threads, threads)
            self.threads = threads
        while result := self.library.llama_decode(self.context, self.filled(tokens, wanted)):
            if result != FULL:
                raise RuntimeError(f"llama.cpp has failed to read {len(tokens)} tokens ({result}): {last_error()}")
            self.open(max(self.cells + self.cells // ROOM, self.cells + len(tokens)), self.sequences)
        scores = np.empty((sum(wanted), self.weights.vocabulary), np.float32)
        if len(scores):
            ctypes.memmove(scores.ctypes.data, self.address_of_logits(self.context), scores.nbytes)
        return scores

    def filled(self, tokens: Sequence[Token], wanted: Sequence[bool]) -> Any:
        """A pass as llama.cpp takes it, in memory that stays: making it costs more than filling it."""
        if self.batch is None or self.batch.size < len(tokens):
            self.batch = Batch(self.library, 2 * len(tokens), self.sequences)
        return self.batch.fill(tokens, wanted)


class Batch:
    """Room for so many tokens of so many sequences each."""

    def __init__(self, library: Any, size: int, sequences: int):
        self.size, self.whole = size, library.llama_batch_init(size, 0, sequences)
        finalize(self, library.llama_batch_free, self.whole)

    def fill(self, tokens: Sequence[Token], wanted: Sequence[bool]) -> Any:
        """These tokens, and which of them are scored."""
        whole = self.whole
        ids, positions, counts, scored = whole.token, whole.pos, whole.n_seq_id, whole.logits
        for index, ((token, position, sequences), is_wanted) in enumerate(zip(tokens, wanted, strict=True)):
            ids[index], positions[index], counts[index], scored[index] = token, position, len(sequences), is_wanted
            places = whole.seq_id[index]
            for place, sequence in enumerate(sequences):
                places[place] = sequence
        whole.n_tokens = len(tokens)
        return whole


def move(library: Any, old: Any, new: Any) -> None:
    """Let a new context hold what an old one does."""
    size = library.llama_state_get_size(old)
    state = (ctypes.c_uint8 * size)()
    written = library.llama_state_get_data(old, state, size)
    if library.llama_state_set_data(new, state, written) != written:
        raise RuntimeError(f"llama.cpp has lost the memory of the rows: {last_error()}")
