"""llama.cpp's own plain decoding through the same binding: one context, one token a pass, its own samplers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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


def sampler(library: Any, temperature: float, seed: int) -> Any:
    """llama.cpp's chain of samplers: the most likely token, or a draw from everything."""
    chain = library.llama_sampler_chain_init(library.llama_sampler_chain_default_params())
    if temperature == 0:
        library.llama_sampler_chain_add(chain, library.llama_sampler_init_greedy())
        return chain
    library.llama_sampler_chain_add(chain, library.llama_sampler_init_temp(temperature))
    library.llama_sampler_chain_add(chain, library.llama_sampler_init_dist(seed))
    return chain


def decode(
    model: GGUF,
    prompt: Sequence[int],
    new_tokens: int,
    temperature: float = 0,
    seed: int = 0,
    ends: Sequence[int] = (),
) -> list[int]:
    """Continue a prompt up to one of these ends."""
    library, tokens = model.weights.library, list[int]()
    chain, following = sampler(library, temperature, seed), (library.llama_token * 1)()
    with context(model, len(prompt) + new_tokens) as handle:
        prompt_tokens = (library.llama_token * len(prompt))(*prompt)
        library.llama_decode(handle, library.llama_batch_get_one(prompt_tokens, len(prompt)))
        while len(tokens) < new_tokens:
            tokens.append(library.llama_sampler_sample(chain, handle, -1))
            following[0] = tokens[-1]
            if tokens[-1] in ends:
                break
            if len(tokens) < new_tokens:
                library.llama_decode(handle, library.llama_batch_get_one(following, 1))
    library.llama_sampler_free(chain)
    return tokens
