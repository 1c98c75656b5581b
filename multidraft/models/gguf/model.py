"""GGUF models, read by llama.cpp, as a target or as a drafter."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import GenerationConfig

from multidraft.errors import AdviceError
from multidraft.errors.checks import check_integer, shown
from multidraft.models import Answering, Branches, Scored
from multidraft.models.gguf.batch import Token
from multidraft.models.gguf.memory import Memory
from multidraft.models.gguf.row import KEPT, Row
from multidraft.models.gguf.weights import Weights
from multidraft.verification.distributions import draw

KINDS = ("f16", "bf16", "f32")


class GGUF(Answering):
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
        self.vocabulary = weights.vocabulary
        self.context: int | None = weights.context
        self.rows: list[Row] | None = None  # before the first forward there is no telling how many
        self.pending = 0

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

    def begin(self, batch: int) -> list[Row]:
        """Rows that hold nothing."""
        self.memory.reserve(batch * self.capacity, batch)
        return [Row(self.memory) for _ in range(batch)]

    def forward(
        self,
        tokens: Int[Tensor, "batch new"],
        positions: Int[Tensor, "batch new"],
        visible: Bool[Tensor, "batch new pending"],
        logits: Scored = True,
    ) -> Float[Tensor, "batch scored vocabulary"]:
        """As for any model. Slots that only fill a batch up are not read, and have logits of zero."""
        with self.memory.lock:
            if self.rows is None:
                self.rows = self.begin(len(tokens))
            if len(tokens) != len(self.rows):
                raise AdviceError(f"{len(tokens)} rows for a reader of {len(self.rows)}; rows come by join(other)")
            parts = zip(tokens.tolist(), positions.tolist(), *sight(visible), strict=True)
            said = self.grown([Branches(*own) for own in parts], tokens.shape[1], logits)
            return torch.from_numpy(said).to(tokens.device)

    def read(self, new: Branches, logits: Scored = True) -> Float[np.ndarray, "scored vocabulary"]:
        with self.memory.lock:
            return self.grown([new], len(new.tokens), logits)[0]

    def grown(self, parts: list[Branches], new: int, logits: Scored) -> Float[np.ndarray, "batch scored vocabulary"]:
        """Read what is new in every row."""
        each = [row.grow(own, self.weights.context) for row, own in zip(self.rows or [], parts, strict=True)]
        self.pending += new
        return self.scores(each, new, logits)

    def scores(
        self, rows: list[dict[int, Token]], new: int, logits: Scored
    ) -> Float[np.ndarray, "batch scored vocabulary"]:
        """What llama.cpp says, and zero where a slot is not read."""
        first = 0 if logits is True else new - bool(logits)  # slot of which logits are wanted
        told = [token for row in rows for token in row.values()]
        wanted = [slot >= first for row in rows for slot in row]
        read = self.memory.read(told, wanted) if told else np.empty((0, self.vocabulary), np.float32)
        if len(read) == len(rows) * (new - first):
            return read.reshape(len(rows), new - first, self.vocabulary)
        scores = np.zeros((len(rows), new - first, self.vocabulary), np.float32)
        places = [(index, slot - first) for index, row in enumerate(rows) for slot in row if slot >= first]
        scores[tuple(np.array(places).T)] = read
        return scores

    def answer(self, roots: list[int], temperatures: Sequence[float], numbers: Sequence[float]) -> list[int]:
        with self.memory.lock:
            tokens = [row.follow(token) for row, token in zip(self.rows or [], roots, strict=True)]
            self.pending += 1
            self.memory.decode(tokens, [True] * len(tokens))
            lines = self.memory.lines(len(tokens))
            rows = zip(lines, temperatures, numbers, strict=True)
            return [draw(line, heat, number) if heat else int(line.argmax()) for line, heat, number in rows]

    def keep_roots(self) -> None:
        for row in self.rows or []:
            row.keep_root()
        self.pending = 0

    def keep(self, chosen: Int[Tensor, "batch kept"]) -> None:
        with self.memory.lock:
            for row, slots in zip(self.rows or [], chosen.tolist(), strict=True):
                row.keep([slot for slot in slots if slot >= 0])
            self.pending = 0

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        if self.rows is None:
            return
        chosen = rows.tolist()
        if len(set(chosen)) < len(chosen) and self.pending:
            raise AdviceError("a row goes on as two while tokens are pending; keep some, or none, before")
        with self.memory.lock:
            old, again = self.rows, [row in chosen[:index] for index, row in enumerate(chosen)]
            self.rows = [
                old[row].part(old[row].length) if twice else old[row] for row, twice in zip(chosen, again, strict=True)
            ]

    def join(self, other: "GGUF") -> None:
        if other.memory is not self.memory:
            raise AdviceError("rows of two different models cannot share a batch; start both with the same model")
        if self.pending or other.pending:
            raise AdviceError("tokens are pending; keep some, or none, before rows join")
        self.rows, other.rows = (self.rows or []) + (other.rows or []), None

    def part(self, row: int, length: int, capacity: int) -> "GGUF":
        rows = self.rows or []
        if not rows or not 0 < length <= rows[row].length:
            raise AdviceError(f"cannot take {length} tokens of row {row}; take some that it has kept")
        part = self.fresh(capacity)
        with self.memory.lock:
            part.rows = [rows[row].part(length)]
        return part


def sight(visible: Bool[Tensor, "batch new pending"]) -> tuple[list[list[int]], list[list[int]]]:
    """How many slots each new one sees before itself, and the last of them, or what stands for none."""
    if visible.shape[2] == 1:  # itself alone
        return [[0]] * len(visible), [[KEPT]] * len(visible)
    old, counts, last = visible.shape[2] - visible.shape[1], list[list[int]](), list[list[int]]()
    for lines in visible.tolist():
        before = [line[:slot] for slot, line in enumerate(lines, old)]
        counts.append(list(map(sum, before)))
        last.append([len(seen) - 1 - seen[::-1].index(True) if any(seen) else KEPT for seen in before])
    return counts, last
