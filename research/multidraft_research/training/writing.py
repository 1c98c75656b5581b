"""Answers of a GGUF chat model, many at once: a row that ends is replaced at once by the next prompt.

Rows that wait for the slowest of their batch would halve the speed. Every row has a sequence of its own, because
llama.cpp computes a token's attention over all cells that its sequence shares with others.
"""

import ctypes
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.io.files import NEW_PREFIX
from multidraft.models.gguf import requantise
from multidraft.models.gguf.choice import named_build
from multidraft.models.gguf.places import llama_cpp_path
from multidraft_research.training.texts import TEXTS_PER_SHARD, TOP_TOKENS, TopText, load, save

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
USER, ASSISTANT, END = "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>"
OPENINGS = (
    "Write a",
    "Summarize",
    "Translate",
    "Explain",
    "What",
    "Give me",
    "Can you",
    "How do",
    "I",
)  # of turns that it writes
TEMPERATURES = (0.0, 0.7, 1.0)  # by turns
MAX_ANSWER_TOKENS, MAX_TURN_TOKENS = 192, 96  # new tokens at most, of an answer and of a user's turn
MAX_ROW_TOKENS, MAX_PASS_TOKENS = 768, 2048
LOOP_TOKENS = 16  # that come again end a greedy text: the rest would be the same


class UserTurn(NamedTuple):
    """A user's turn; without one, the model writes it."""

    number: int
    id: str
    user: str | None


class Part(NamedTuple):
    """New tokens of a row, and how many at the end are scored."""

    tokens: list[int]
    position: int
    sequence: int
    scored: int


class RowReader:
    """A GGUF model with a memory of its own for every row, in one thread."""

    def __init__(self, path: Path, rows: int):
        self.library = named_build(path, llama_cpp_path())
        self.model = self.library.llama_model_load_from_file(bytes(path), self.library.llama_model_default_params())
        if not self.model:
            raise AdviceError(
                f"llama.cpp cannot load {str(path)!r}: {self.library.last_error()}; get another file of the model"
            )
        settings = self.library.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max, settings.n_batch = MAX_ROW_TOKENS * rows, rows, MAX_PASS_TOKENS
        settings.n_threads = settings.n_threads_batch = 1
        settings.kv_unified = False
        self.context = self.library.llama_init_from_model(self.model, settings)
        self.memory = self.library.llama_get_memory(self.context)
        self.vocab = self.library.llama_model_get_vocab(self.model)
        self.vocabulary: int = self.library.llama_vocab_n_tokens(self.vocab)
        self.batch = self.library.llama_batch_init(MAX_PASS_TOKENS, 0, 1)

    def tokens(self, text: str) -> list[int]:
        """The tokens of a text, special ones among them."""
        raw = text.encode()
        ids = (ctypes.c_int32 * (len(raw) + 8))()
        count = self.library.llama_tokenize(self.vocab, raw, len(raw), ids, len(ids), False, True)
        return list(ids[:count])

    def forget(self, sequence: int) -> None:
        """Make room for another row."""
        self.library.llama_memory_seq_rm(self.memory, sequence, 0, -1)

    def read(self, parts: Sequence[Part]) -> Float[Tensor, "scored vocabulary"]:
        """Logits at the scored ends of all parts, until the next pass; parts come by rising sequences."""
        batch, index, scored = self.batch, 0, sum(part.scored for part in parts)
        for tokens, position, sequence, is_wanted in parts:
            for place, token in enumerate(tokens):
                batch.token[index], batch.pos[index] = token, position + place
                batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
                batch.logits[index] = place >= len(tokens) - is_wanted
                index += 1
        batch.n_tokens = index
        if self.library.llama_decode(self.context, batch):
            raise RuntimeError(f"llama.cpp has failed to read {index} tokens: {self.library.last_error()}")
        logits = ctypes.cast(self.library.llama_get_logits(self.context), ctypes.POINTER(ctypes.c_float))
        return torch.from_numpy(np.ctypeslib.as_array(logits, (scored, self.vocabulary)))


@dataclass(eq=False)
class OpenText:
    """A text that is being written."""

    prompt: UserTurn
    sequence: int
    tokens: list[int]
    limit: int
    random: np.random.Generator
    answers: bool  # whether the answer is being written, and not the user's turn
    first: int = 0  # where the prompt begins; the system's line is always the same
    read: int = 0
    places: list[int] = field(default_factory=list)
    ids: list[np.ndarray] = field(default_factory=list)
    logs: list[np.ndarray] = field(default_factory=list)

    @property
    def temperature(self) -> float:
        """The temperature at present; users' turns are written at T = 1."""
        return TEMPERATURES[self.prompt.number % len(TEMPERATURES)] if self.answers else 1.0

    def part(self) -> Part:
        """What the model has not read; of a prompt all is scored, but for its first token."""
        unread, position = self.tokens[self.read :], self.read
        scored = 1 if self.places else len(unread) - self.first
        self.places += range(len(self.tokens) - scored + 1, len(self.tokens) + 1)
        self.read = len(self.tokens)
        return Part(unread, position, self.sequence, scored)

    def take(self, token: int, ids: np.ndarray, logs: np.ndarray, end: int, answer: list[int]) -> bool:
        """Add a token; whether the text is over."""
        self.ids.append(ids)
        self.logs.append(logs)
        self.tokens.append(token)
        if token == end and not self.answers:
            self.answers, self.tokens = True, self.tokens + answer
            self.limit = len(self.tokens) + MAX_ANSWER_TOKENS
            return False
        return token == end or len(self.tokens) >= self.limit or self.is_looping()

    def is_looping(self) -> bool:
        """Whether a greedy text has begun to repeat itself."""
        written = np.array(self.tokens[self.limit - MAX_ANSWER_TOKENS :], np.uint16)
        is_greedy = self.answers and not self.temperature
        return is_greedy and written[:-1].tobytes().find(written[-LOOP_TOKENS:].tobytes()) >= 0

    def text(self) -> TopText:
        """The text with what was kept of its distributions."""
        about = {
            "number": self.prompt.number,
            "id": self.prompt.id,
            "temperature": TEMPERATURES[self.prompt.number % 3],
        }
        ids, logs = np.concatenate(self.ids), np.concatenate(self.logs)
        return TopText(np.array(self.tokens), np.array(self.places), ids, logs, about)


def as_bfloat16(path: Path, folder: Path) -> Path:
    """The same model in bfloat16, made once: of many rows it takes a third of the time of Q4_1."""
    place = folder / f"{path.stem}-bf16.gguf"
    if not place.exists():
        new_path = place.with_name(f"{NEW_PREFIX}{os.getpid()}.gguf")
        requantise.write(path, new_path, "BF16")
        new_path.replace(place)
    return place


def new_row(reader: RowReader, prompt: UserTurn, sequence: int) -> OpenText:
    """A row with its prompt."""
    random = np.random.default_rng([11, prompt.number])
    if prompt.user is None:
        text = USER + (random.choice(OPENINGS) if random.random() < 0.5 else "")
    else:
        text = f"{USER}{prompt.user.strip()}{END}\n{ASSISTANT}"
    tokens = reader.tokens(SYSTEM + text)
    limit = len(tokens) + (MAX_TURN_TOKENS if prompt.user is None else MAX_ANSWER_TOKENS)
    first = len(reader.tokens(SYSTEM))
    return OpenText(prompt, sequence, tokens, limit, random, answers=prompt.user is not None, first=first)


def sample(
    logits: Float[Tensor, "rows vocabulary"], temperatures: Sequence[float], numbers: Sequence[float]
) -> Int[np.ndarray, " rows"]:
    """A token of each row: the most likely one at T = 0, else that at which the distribution function passes a number.

    >>> sample(torch.tensor([[0.0, 0.0], [0.0, 1.0]]), [1.0, 0.0], [0.4, 0.9]).tolist()
    [0, 1]
    """
    drawn = logits.argmax(-1)
    for row, (temperature, number) in enumerate(zip(temperatures, numbers, strict=True)):
        if temperature:
            sums = (logits[row].double() / temperature).softmax(-1).cumsum(-1)
            drawn[row] = torch.searchsorted(sums, number * sums[-1], right=True).clamp(max=len(sums) - 1)
    return drawn.numpy()


def write(
    path: Path, prompts: Iterator[UserTurn], out: Path, name: str, rows: int = 64, seconds: float = float("inf"),
    report: Callable[[int], Any] = lambda count: None,
) -> None:  # fmt: skip
    """Write shards `name`-00000.npz, ... until the prompts, or so many seconds, are over.

    `report` is called with the number of new tokens of each pass.

    Prompts whose numbers are in a shard that is there are passed over, so a run that was stopped goes on.
    """
    torch.set_num_threads(1)
    shards = sorted(out.glob(f"{name}-*.npz"))
    done = {text.about["number"] for shard in shards for text in load(shard)}
    finished: list[TopText] = []
    begin, count = time.monotonic(), len(shards)
    new_prompts = (prompt for prompt in prompts if prompt.number not in done)
    for text in write_rows(RowReader(path, rows), new_prompts, rows, report):
        finished.append(text)
        if len(finished) == TEXTS_PER_SHARD:
            save(out / f"{name}-{count:05d}.npz", finished)
            finished, count = [], count + 1
        if time.monotonic() - begin > seconds:
            break
    if finished:
        save(out / f"{name}-{count:05d}.npz", finished)


def write_rows(
    reader: RowReader, prompts: Iterator[UserTurn], max_rows: int, report: Callable[[int], Any]
) -> Iterator[TopText]:
    """Texts as they end; a row that ends is replaced before the next pass."""
    end, answer = reader.tokens(END)[0], reader.tokens(f"\n{ASSISTANT}")
    rows: list[OpenText] = []
    free = list(range(max_rows))
    while fill_rows(reader, prompts, rows, free):
        rows.sort(key=lambda row: row.sequence)  # neighbours are computed together
        parts = [row.part() for row in rows]
        logits = reader.read(parts)
        values, ids = logits.topk(TOP_TOKENS)
        logs = values - logits.logsumexp(-1, keepdim=True)
        ends = np.cumsum([part.scored for part in parts])
        drawn = sample(logits[ends - 1], [row.temperature for row in rows], [row.random.random() for row in rows])
        report(len(rows))
        for row, token, part, last in zip(list(rows), drawn, parts, ends, strict=True):
            scored_part = slice(last - part.scored, last)
            if row.take(int(token), ids[scored_part].numpy(), logs[scored_part].numpy(), end, answer):
                rows.remove(row)
                free.append(row.sequence)
                yield row.text()


def fill_rows(reader: RowReader, prompts: Iterator[UserTurn], rows: list[OpenText], free: list[int]) -> bool:
    """Begin rows as long as there is room in the next pass; whether there are any."""
    room = MAX_PASS_TOKENS - len(rows)
    while free and room > MAX_ROW_TOKENS and (prompt := next(prompts, None)):
        row = new_row(reader, prompt, free[-1])
        if row.limit <= MAX_ROW_TOKENS:
            reader.forget(free.pop())
            rows.append(row)
            room -= len(row.tokens)
    return bool(rows)
