"""llama.cpp's own plain decoding through the same binding: one context, one token a pass, its own samplers."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from multidraft.models.gguf.model import GGUF

SETTLED = 32  # passes over one token after which they no longer get faster
EACH = 4  # passes over as many tokens that are timed one after another


@contextmanager
def context(model: GGUF, cells: int) -> Iterator[Any]:
    """A context of its own over the weights of a model, with as many threads as torch may use."""
    library = model.weights.library
    settings = model.memory.settings(cells, 1)
    found = library.llama_init_from_model(model.weights.pointer, settings)
    try:
        yield found
    finally:
        library.llama_free(found)


def sampler(library: Any, temperature: float, seed: int) -> Any:
    """llama.cpp's chain of samplers: the most likely token, or a draw from everything."""
    chain = library.llama_sampler_chain_init(library.llama_sampler_chain_default_params())
    if temperature == 0:
        library.llama_sampler_chain_add(chain, library.llama_sampler_init_greedy())
        return chain
    library.llama_sampler_chain_add(chain, library.llama_sampler_init_temp(temperature))
    library.llama_sampler_chain_add(chain, library.llama_sampler_init_dist(seed))
    return chain


def decode(model: GGUF, prompt: Sequence[int], new_tokens: int, temperature: float = 0, seed: int = 0) -> list[int]:
    """Continue a prompt, past any end of text."""
    library, tokens = model.weights.library, list[int]()
    chain, following = sampler(library, temperature, seed), (library.llama_token * 1)()
    with context(model, len(prompt) + new_tokens) as own:
        given = (library.llama_token * len(prompt))(*prompt)
        library.llama_decode(own, library.llama_batch_get_one(given, len(prompt)))
        while len(tokens) < new_tokens:
            tokens.append(library.llama_sampler_sample(chain, own, -1))
            following[0] = tokens[-1]
            if len(tokens) < new_tokens:
                library.llama_decode(own, library.llama_batch_get_one(following, 1))
    library.llama_sampler_free(chain)
    return tokens


def pass_times(model: GGUF, counts: Sequence[int], past: int, rounds: int) -> dict[int, list[float]]:
    """Seconds of passes over so many tokens after `past` others, with logits of all, by turns.

    Each follows others over as many: only after a dozen of them is a pass as fast as in a run.
    """
    reader, times = model.fresh(past + max(counts)), {count: list[float]() for count in counts}
    slots = torch.arange(past)[None]
    reader.forward(slots % model.vocabulary, slots, (slots[0][:, None] >= slots[0])[None], logits=False)
    reader.keep(slots)
    for _ in range(rounds):
        for count in counts:
            new = torch.arange(count)[None]
            for turn in range(SETTLED + EACH):
                start = time.perf_counter()
                reader.forward(new, past + new, (new[0][:, None] >= new[0])[None])
                took = time.perf_counter() - start
                reader.keep(torch.full((1, 0), -1))
                if turn >= SETTLED:
                    times[count].append(took)
    return times
