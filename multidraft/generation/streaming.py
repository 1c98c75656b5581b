"""How new tokens are passed on while a generation runs: to a function, or to a streamer of transformers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from multidraft.decoding.record import Emitted
from multidraft.errors import AdviceError

Stream = Callable[[int, Emitted], None]


@runtime_checkable
class Streamer(Protocol):
    """What transformers calls a streamer: it is given the prompt, then the new tokens one by one."""

    def put(self, value: Tensor) -> None: ...

    def end(self) -> None: ...


@contextmanager
def as_stream(stream: Stream | Streamer | None, prompts: list[list[int]]) -> Iterator[Stream]:
    """A function for every step; a streamer's end is told even when decoding fails, as somebody may wait for it."""
    if not isinstance(stream, Streamer):
        yield stream or (lambda row, emitted: None)
        return
    if len(prompts) > 1:
        raise AdviceError(f"a streamer follows one prompt, and there are {len(prompts)}; pass stream(row, emitted)")
    stream.put(torch.tensor(prompts))

    def put(row: int, emitted: Emitted) -> None:
        for token in emitted.tokens:
            stream.put(torch.tensor([token]))

    try:
        yield put
    finally:
        stream.end()
