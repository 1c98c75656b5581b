"""GGUF models, read by llama.cpp, as a target or as a drafter."""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import GenerationConfig

from multidraft.errors import AdviceError, check_integer, shown
from multidraft.models.base import Scored, check_nothing_pending, check_parents, check_path, check_rows
from multidraft.models.gguf.batch import Token
from multidraft.models.gguf.memory import Memory
from multidraft.models.gguf.row import Row
from multidraft.models.gguf.weights import Weights

KINDS = ("f16", "bf16", "f32")


class GGUF:
    """A model of a GGUF file. A tree is one pass, in which a node carries the sequences of all ends below it.

    All readers that `fresh` makes share the weights and one memory, so that rows move between them without a copy. Keys
    and values are kept in `cache_type` (f16, bf16 or f32); `gpu_layers` counts those that a GPU computes, where
    llama.cpp was built for one (all, unless you say so). It computes with as many threads as torch may use.

    Raises AdviceError where the file is none, is cut short, or needs more memory than there is, and for recurrent and
    hybrid models, whose memory cannot be rolled back.
    """

    device = torch.device("cpu")  # where tokens are expected and logits are returned

    def __init__(self, path: str | Path, cache_type: str = "f16", gpu_layers: int | None = None):
        if cache_type not in KINDS:
            raise AdviceError(f"cache_type is {shown(cache_type)}; use one of {', '.join(KINDS)}")
        if gpu_layers is not None:
            check_integer(gpu_layers, "gpu_layers", 0)
        weights = Weights(Path(path).expanduser(), gpu_layers)
        self._hold(weights, Memory(weights, cache_type))

    def _hold(self, weights: Weights, memory: Memory, capacity: int = 0) -> None:
        self.weights, self.memory, self.capacity = weights, memory, capacity
        self.vocabulary, self.ids = weights.tokens.size, weights.tokens.ids
        self.context: int | None = weights.context
        self.rows: list[Row] = []  # none before the first forward

    @property
    def generation_config(self) -> GenerationConfig:
        """Where a text ends, which is all that such a file says of generation."""
        return GenerationConfig(eos_token_id=self.weights.ends or None)

    @property
    def identity(self) -> dict[str, str]:
        """What a plan of it depends on."""
        package = "llama_cpp_python"
        return {"digest": self.weights.digest, "dtype": self.memory.kind, package: version(package)}

    def fresh(self, capacity: int) -> "GGUF":
        reader = GGUF.__new__(GGUF)
        reader._hold(self.weights, self.memory, capacity)
        return reader

    def forward(
        self, tokens: list[list[int]], parents: list[list[int]], scored: Scored = "all"
    ) -> Float[Tensor, "rows new columns"]:
        """As for any model; tokens beyond the context are not read, and have logits of zero."""
        with self.memory.lock:
            if not self.rows:
                self.memory.reserve(len(tokens) * self.capacity, len(tokens))
                self.rows = [Row(self.memory) for _ in tokens]
            check_rows(len(tokens), len(self.rows))
            for row, new in zip(self.rows, parents, strict=True):
                check_parents(new, len(row.parents))
            own, end = self.weights.tokens, self.weights.context
            each = zip(self.rows, tokens, parents, strict=True)
            said = self.scores([row.grow(own.own(new), above, end) for row, new, above in each], scored)
            return torch.from_numpy(said)[..., : own.columns]

    def scores(self, rows: list[list[Token | None]], scored: Scored) -> Float[np.ndarray, "rows new vocabulary"]:
        """What llama.cpp says, and zero where nothing is read."""
        firsts = [{"all": 0, "last": max(len(row) - 1, 0), "none": len(row)}[scored] for row in rows]
        slots = [(index, slot, token) for index, row in enumerate(rows) for slot, token in enumerate(row) if token]
        wanted = [slot >= firsts[index] for index, slot, _ in slots]
        read = (
            self.memory.read([token for *_, token in slots], wanted)
            if slots
            else np.empty((0, self.weights.vocabulary), np.float32)
        )
        width = max((len(row) - first for row, first in zip(rows, firsts, strict=True)), default=0)
        if len(read) == len(rows) * width:
            return read.reshape(len(rows), width, self.weights.vocabulary)
        scores = np.zeros((len(rows), width, self.weights.vocabulary), np.float32)
        places = [(index, slot - firsts[index]) for index, slot, _ in slots if slot >= firsts[index]]
        scores[tuple(np.array(places, np.int64).reshape(-1, 2).T)] = read
        return scores

    def keep(self, chosen: list[list[int]]) -> None:
        check_rows(len(chosen), len(self.rows))
        for row, path in zip(self.rows, chosen, strict=True):
            check_path(path, row.parents)
        with self.memory.lock:
            for row, path in zip(self.rows, chosen, strict=True):
                row.keep(path)

    @property
    def pending(self) -> int:
        """Tokens that are pending in all rows."""
        return sum(len(row.parents) for row in self.rows)

    def select(self, rows: list[int]) -> None:
        if len(set(rows)) < len(rows) and self.pending:
            raise AdviceError("a row goes on as two while tokens are pending; keep some, or none, before")
        with self.memory.lock:
            old, again = self.rows, [row in rows[:index] for index, row in enumerate(rows)]
            pairs = zip(rows, again, strict=True)
            self.rows = [old[row].part(old[row].length) if twice else old[row] for row, twice in pairs]

    def join(self, other: "GGUF") -> None:
        if other.memory is not self.memory:
            raise AdviceError("rows of two different models cannot share a batch; start both with the same model")
        check_nothing_pending(self.pending, other.pending)
        self.rows, other.rows = self.rows + other.rows, []

    def part(self, row: int, length: int, capacity: int) -> "GGUF":
        if not 0 < length <= self.rows[row].length:
            raise AdviceError(f"cannot take {length} tokens of row {row}; take some that it has kept")
        part = self.fresh(capacity)
        with self.memory.lock:
            part.rows = [self.rows[row].part(length)]
        return part
