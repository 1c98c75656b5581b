"""The loop around the step: rows decode side by side, and leave where plain decoding would have stopped."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, StoppingCriteria, StopStringCriteria
from transformers.generation import EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria

from multidraft.decoding.metrics import Info
from multidraft.decoding.record import Emitted, StepRecord
from multidraft.decoding.state import DecodeConfig, State, gather
from multidraft.decoding.step import step
from multidraft.errors import AdviceError
from multidraft.models.base import closed_up
from multidraft.sampling.criteria import holds
from multidraft.sampling.gate import RowFault

Told = Callable[[StepRecord, list[int]], None]  # a step, and which rows of the beginning it was about
Stream = Callable[[int, Emitted], None]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Stopping:
    """Limits for each row, end-of-text tokens, criteria that look at the sequence, and a time after which all stop."""

    budgets: list[int]  # new tokens by row
    ends: set[int]
    criteria: Sequence[StoppingCriteria] = ()
    prompts: Sequence[Sequence[int]] = ()  # what the criteria see before the new tokens
    deadline: float = float("inf")  # of time.monotonic(): the pass in which it falls is the last, and is kept
    device: torch.device = CPU  # where the criteria expect the sequence

    def cut(self, row: int, done: list[int], new: Emitted) -> tuple[Emitted, bool]:
        """The emitted tokens up to the first that ends the row, and whether it goes on."""
        room = self.budgets[row] - len(done)
        for count, token in enumerate(new.tokens[:room], 1):
            if token in self.ends or (self.criteria and self.met(row, done + new.tokens[:count])):
                return new.first(count), False
        return new if len(new.tokens) <= room else new.first(room), len(new.tokens) < room

    def met(self, row: int, tokens: list[int]) -> bool:
        """Whether a criterion holds after these new tokens."""
        sequence = torch.tensor([[*self.prompts[row], *tokens]], device=self.device)
        try:
            return any(holds(criterion, sequence) for criterion in self.criteria)
        except RowFault as fault:
            raise fault.at(row, sequence.shape[1] - 1) from fault


def stop_strings(strings: str | Sequence[str] | None, tokenizer: PreTrainedTokenizerBase | None) -> list:
    """The criterion for stop strings, if there are any."""
    if not strings:
        return []
    if tokenizer is None:
        raise AdviceError(
            "stop strings need the tokenizer; pass it as stop_tokenizer (model.generate keeps `tokenizer` to itself)"
        )
    return [StopStringCriteria(tokenizer, strings if isinstance(strings, str) else list(strings))]


def from_criteria(
    criteria: Sequence[StoppingCriteria], prompts: list[list[int]], budgets: list[int], device: torch.device
) -> Stopping:
    """The same from a list that `generate` prepared for prompts of these (padded) tokens."""
    ends, others, deadline = set[int](), [], float("inf")
    for criterion in criteria:
        if type(criterion) is MaxLengthCriteria:
            budgets = [min(b, criterion.max_length - len(p)) for b, p in zip(budgets, prompts, strict=True)]
        elif type(criterion) is EosTokenCriteria:
            ends |= set(criterion.eos_token_id.tolist())
        elif type(criterion) is MaxTimeCriteria:
            deadline = min(deadline, after(criterion.initial_timestamp + criterion.max_time - time.time()))
        else:
            others.append(criterion)
    return Stopping(budgets, ends, others, prompts, deadline, device)


def after(seconds: float | int) -> float:
    """The deadline that is so many seconds from now; setting the clock on the wall does not move it."""
    return time.monotonic() + seconds


def loop(
    state: State, config: DecodeConfig, stopping: Stopping, stream: Stream, info: Info, told: Told | None = None
) -> list[list[int]]:
    """Step until every row has come to its end; rows that have leave the batch. `info.faults` has what ended badly."""
    done: list[list[int]] = [[] for _ in stopping.budgets]
    if config.logprobs is not None:
        info.logprobs = [[] for _ in stopping.budgets]

    def goes_on(index: int, row: int) -> bool:
        if index in record.faults:
            fault = record.faults[index]
            info.faults[row] = fault.at(row, fault.position)  # of the rows of the beginning
            return False
        try:
            new, more = stopping.cut(row, done[row], record.emitted[index])
        except RowFault as fault:
            info.faults[row] = fault
            return False
        done[row] += new.tokens
        info.tokens += len(new.tokens)
        if info.logprobs:
            info.logprobs[row] += new.logprobs
        stream(row, new)
        return more

    running = list(range(len(done)))
    going = [row for row in running if stopping.budgets[row] > 0]
    while going:
        if len(going) < len(running):
            order = closed_up(going)
            running, state = [running[index] for index in order], gather(state, order)
        state, record = step(state, config)
        info.add(record)
        if told is not None:
            told(record, running)
        going = [index for index, row in enumerate(running) if goes_on(index, row)]
        if time.monotonic() >= stopping.deadline:
            break
    return done


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
