"""The loop around the step: rows decode side by side, and leave when they are done."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from multidraft.decoding.metrics import Info
from multidraft.decoding.record import Emitted, StepRecord
from multidraft.decoding.state import DecodeConfig, State, select
from multidraft.decoding.step import step
from multidraft.decoding.stopping import Stopping
from multidraft.errors import AdviceError
from multidraft.models.base import closed_up

Told = Callable[[StepRecord, list[int]], None]  # a step, and which rows of the beginning it was about
Stream = Callable[[int, Emitted], None]


def loop(
    state: State,
    config: DecodeConfig,
    stopping: Stopping,
    stream: Stream,
    info: Info,
    told: Told | None = None,
) -> list[list[int]]:
    """Step until every row has come to its end; rows that have leave the batch. `info.faults` has what ended badly."""
    done: list[list[int]] = [[] for _ in stopping.budgets]
    if config.logprobs is not None:
        info.logprobs = [[] for _ in stopping.budgets]
    running = list(range(len(done)))
    going = [row for row in running if stopping.budgets[row] > 0]
    while going and not stopping.time_is_up():
        if len(going) < len(running):
            order = closed_up(going)
            running, state = [running[index] for index in order], select(state, order)
        state, record = step(state, config)
        info.add(record)
        if told is not None:
            told(record, running)
        going = [
            index for index, row in enumerate(running) if goes_on(index, row, done[row], record, stopping, stream, info)
        ]
    return done


def goes_on(
    index: int,
    row: int,
    done: list[int],
    record: StepRecord,
    stopping: Stopping,
    stream: Stream,
    info: Info,
) -> bool:
    """Pass on what a row has emitted up to its end, and say whether it has not come to it."""
    if index in record.faults:
        fault = record.faults[index]
        info.faults[row] = fault.at(row, fault.position)  # of the rows of the beginning
        return False
    new, more = stopping.cut(row, done, record.emitted[index])
    done += new.tokens
    info.tokens += len(new.tokens)
    if info.logprobs:
        info.logprobs[row] += new.logprobs
    stream(row, new)
    return more


@runtime_checkable
class Streamer(Protocol):
    """What transformers calls a streamer: it is given the prompt, then the new tokens one by one."""

    def put(self, value: Tensor) -> None: ...

    def end(self) -> None: ...


@contextmanager
def as_stream(stream: Stream | Streamer | None, prompts: list[list[int]]) -> Iterator[Stream]:
    """A function for every step; a streamer's end is told even when decoding fails, as somebody may wait for it."""
    if stream is None:
        yield lambda row, emitted: None
    elif not isinstance(stream, Streamer):
        yield stream
    else:
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
