"""Hidden states of a model that llama.cpp reads: what its layers put out, copied while a pass is computed.

llama.cpp asks a callback of every tensor of a pass whether it is needed, computes up to those that are, and hands these
over. Layer i's output is named `l_out-i`, and is the state i + 1 of transformers. A pass has hundreds of tensors, so
that the callback is compiled.
"""

import ctypes
import inspect
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float
from numba import carray, cfunc, types

from multidraft.models.gguf.binding import SIZE, LibraryFiles
from multidraft.verification.loops import compile_loop

PREFIX, ZERO, NINE = np.frombuffer(b"l_out-", np.uint8), 48, 57  # in ASCII
MAX_NAME = 64  # bytes of a tensor's
TEXT = ctypes.POINTER(ctypes.c_uint8)
FLOAT_BYTES = 4
LAYER, ADDRESS, DONE, ROOM, FIELDS = range(5)  # what the callback knows of a layer: its number, bytes of its buffer


class LayerOutputs:
    """The outputs of some layers for all tokens that are read; `states` are numbered as in transformers."""

    def __init__(self, files: LibraryFiles, states: Sequence[int], width: int):
        self.states, self.width = tuple(states), width
        self.table = np.zeros(1 + FIELDS * len(states), np.int64)
        self.table[0], self.layers = len(states), self.table[1:].reshape(-1, FIELDS)
        self.layers[:, LAYER] = np.array(states) - 1
        self.callback = callback_of(files)
        self.buffers = np.empty((len(states), 0, width), np.float32)
        self.begin(0)

    def install(self, settings: Any) -> None:
        """Let a new context call back."""
        settings.cb_eval = ctypes.cast(self.callback.address, type(settings.cb_eval))
        settings.cb_eval_user_data = self.table.ctypes.data

    def begin(self, tokens: int) -> None:
        """Make room for so many tokens, which are about to be read."""
        if tokens > self.buffers.shape[1]:
            self.buffers = np.empty((len(self.layers), tokens, self.width), np.float32)
            self.layers[:, ADDRESS] = [buffer.ctypes.data for buffer in self.buffers]
        self.tokens = tokens
        self.layers[:, DONE], self.layers[:, ROOM] = 0, tokens * self.width * FLOAT_BYTES

    def read(self, states: Sequence[int]) -> Float[np.ndarray, "tokens layers width"]:
        """Some states of all tokens that were read; raises RuntimeError where some did not come."""
        if (self.layers[:, DONE] != self.layers[:, ROOM]).any():
            done, room = self.layers[:, DONE].tolist(), self.layers[:, ROOM].tolist()
            raise RuntimeError(f"of the hidden states, {done} of {room} bytes have come")
        read = self.buffers[:, : self.tokens]
        read = read if tuple(states) == self.states else read[[self.states.index(state) for state in states]]
        return np.array(read.transpose(1, 0, 2), order="C")  # the next pass writes over them


@compile_loop
def layer_of(name):
    """The number in a name of the form `l_out-12`; -1 for any other."""
    for place in range(PREFIX.size):
        if name[place] != PREFIX[place]:
            return -1
    number, place = 0, PREFIX.size
    while ZERO <= name[place] <= NINE:
        number, place = 10 * number + (name[place] - ZERO), place + 1
    return number if name[place] == 0 else -1


@cache
def callback_of(files: LibraryFiles) -> Any:
    """The compiled callback, which calls these functions of ggml."""
    name_of = files.function("ggml_get_name", TEXT, [SIZE])
    count_of = files.function("ggml_nelements", SIZE, [SIZE])
    copy = files.function("ggml_backend_tensor_get", None, [SIZE] * 4)

    def take(tensor, is_question, known):
        """Whether a layer's output is needed, or else copy it behind what its buffer holds; 1 to go on."""
        number = layer_of(carray(name_of(tensor), MAX_NAME))
        table = carray(known, 1 + FIELDS * carray(known, 1, np.int64)[0], np.int64)
        for place in range(1, table.size, FIELDS):
            if table[place + LAYER] == number:
                size = FLOAT_BYTES * count_of(tensor)
                if not is_question and table[place + DONE] + size <= table[place + ROOM]:
                    copy(tensor, table[place + ADDRESS] + table[place + DONE], 0, size)
                    table[place + DONE] += size
                return 1
        return 0 if is_question else 1

    return cfunc(types.uint8(types.size_t, types.uint8, types.voidptr))(inspect.unwrap(take))
