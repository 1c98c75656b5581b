"""Plain decoding by llama.cpp or its fork, through the same binding: one context, one token a pass.

llama.cpp draws with its own samplers. Those of ik_llama.cpp go through a list of all tokens in Python, so tokens are
drawn from its logits with NumPy, which is faster.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from multidraft.models.gguf import LLAMA_CPP
from multidraft.models.gguf.binding import INT, POINTER, Signatures
from multidraft.models.gguf.memory import LlamaBatch, PlacedToken
from multidraft.models.gguf.model import GGUF


@contextmanager
def context(model: GGUF, cells: int) -> Iterator[Any]:
    """A context of its own over the weights of a model, with as many threads as torch may use."""
    library = model.weights.library
    settings = model.memory.settings(cells, 1)
    pointer = library.llama_init_from_model(model.weights.pointer, settings)
    try:
        yield pointer
    finally:
        library.llama_free(pointer)


class ChainParameters(ctypes.Structure):
    """Those of llama.cpp's chain of samplers."""

    _fields_ = [("no_perf", ctypes.c_bool)]


FUNCTIONS: Signatures = {
    "llama_sampler_chain_default_params": (ChainParameters, []),
    "llama_sampler_chain_init": (POINTER, [ChainParameters]),
    "llama_sampler_chain_add": (None, [POINTER, POINTER]),
    "llama_sampler_init_greedy": (POINTER, []),
    "llama_sampler_init_temp": (POINTER, [ctypes.c_float]),
    "llama_sampler_init_dist": (POINTER, [ctypes.c_uint32]),
    "llama_sampler_sample": (INT, [POINTER, POINTER, INT]),
    "llama_sampler_free": (None, [POINTER]),
}


def chain_of_samplers(library: Any, temperature: float, seed: int) -> Any:
    """llama.cpp's chain of samplers: the most likely token, or a draw from everything."""
    chain = library.llama_sampler_chain_init(library.llama_sampler_chain_default_params())
    if temperature == 0:
        library.llama_sampler_chain_add(chain, library.llama_sampler_init_greedy())
        return chain
    library.llama_sampler_chain_add(chain, library.llama_sampler_init_temp(temperature))
    library.llama_sampler_chain_add(chain, library.llama_sampler_init_dist(seed))
    return chain


@contextmanager
def sampler(model: GGUF, handle: Any, temperature: float, seed: int) -> Iterator[Callable[[], int]]:
    """A function that draws the next token."""
    library = model.weights.library
    if library.name == LLAMA_CPP:
        functions = library.files.functions(FUNCTIONS)
        chain = chain_of_samplers(functions, temperature, seed)
        yield lambda: functions.llama_sampler_sample(chain, handle, -1)
        functions.llama_sampler_free(chain)
        return
    random, vocabulary = np.random.default_rng(seed), model.weights.vocabulary

    def draw() -> int:
        address = library.llama_get_logits(handle)
        logits = np.ctypeslib.as_array((ctypes.c_float * vocabulary).from_address(address))
        if temperature:
            logits = logits / temperature + random.gumbel(size=vocabulary)
        return int(logits.argmax())

    yield draw


def decode(
    model: GGUF,
    prompt: Sequence[int],
    new_tokens: int,
    temperature: float = 0,
    seed: int = 0,
    ends: Sequence[int] = (),
) -> list[int]:
    """Continue a prompt up to one of these ends."""
    library, tokens, batch = model.weights.library, list[int](), LlamaBatch(model.weights.library, 1)
    most = min(library.most_tokens, len(prompt))

    def read(new: Sequence[int], start: int) -> None:
        places = [PlacedToken(token, start + place, [0]) for place, token in enumerate(new)]
        library.llama_decode(handle, batch.fill(places, [False] * (len(new) - 1) + [True]))

    with context(model, len(prompt) + new_tokens) as handle, sampler(model, handle, temperature, seed) as draw:
        for start in range(0, len(prompt), most):
            read(prompt[start : start + most], start)
        while len(tokens) < new_tokens:
            tokens.append(draw())
            if tokens[-1] in ends:
                break
            if len(tokens) < new_tokens:
                read(tokens[-1:], len(prompt) + len(tokens) - 1)
    return tokens
