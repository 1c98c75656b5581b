"""GGUF models, read by llama.cpp or its fork, as a target or as a drafter."""

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import GenerationConfig

from multidraft.errors import AdviceError, check_integer, quote
from multidraft.models.gguf.choice import hub_file, library_for
from multidraft.models.gguf.file import LoadedModel
from multidraft.models.gguf.library import GGUFLibrary
from multidraft.models.gguf.memory import BYTES, Memory, PlacedToken, Sequences
from multidraft.models.reader import HiddenStates, Lists, Reader, Row, Scored, count_scored


class GGUF(Reader):
    """A model of a GGUF file. A tree is one pass, in which a node carries the sequences of all ends below it.

    All readers that `new` makes share the weights and one memory, so that rows move between them without a copy. Keys
    and values are kept in `cache_type` (f16, bf16 or f32); `gpu_layers` counts those that a GPU computes, where
    llama.cpp was built for one (all, unless you say so). `library` is "ik_llama.cpp", "llama.cpp", the folder of a
    build of llama.cpp, or what is loaded already; without it, the fastest that is there and reads the file. It computes
    with as many threads as torch may use. A path may also be a name of the hub, `ORG/NAME:TYPE`, with a `revision`.

    Raises AdviceError where the file is none, is cut short, or needs more memory than there is, and for recurrent and
    hybrid models, whose memory cannot be rolled back.
    """

    output_layers: tuple[int, ...] = ()

    def __init__(
        self,
        path: str | Path,
        cache_type: str = "f16",
        gpu_layers: int | None = None,
        library: str | GGUFLibrary | None = None,
        revision: str | None = None,
    ):
        if cache_type not in BYTES:
            raise AdviceError(f"cache_type is {quote(cache_type)}; use one of {', '.join(BYTES)}")
        if gpu_layers is not None:
            check_integer(gpu_layers, "gpu_layers", 0)
        path = hub_file(str(path), revision, library, is_gguf=True) or Path(path).expanduser()
        if not isinstance(library, GGUFLibrary):
            library = library_for(path, library, cache_type, gpu_layers)
        self.weights = LoadedModel(path, library, gpu_layers)
        self.memory = self.source = Memory(self.weights, cache_type)
        self.capacity = 0
        self.vocabulary, self.ids = self.weights.tokens.size, self.weights.tokens.ids
        self.context, self.sequences = self.weights.context, self.weights.library.most_sequences

    @property
    def generation_config(self) -> GenerationConfig:  # type: ignore[override]
        """Where a text ends, which is all that such a file says of generation."""
        return GenerationConfig(eos_token_id=self.weights.ends or None)

    @property
    def fingerprint(self) -> dict[str, str]:
        """What a plan of it depends on."""
        return {"digest": self.weights.digest, "dtype": self.memory.kind} | self.weights.library.identity

    def new(self, capacity: int) -> "GGUF":
        reader = copy.copy(self)
        reader.rows, reader.capacity = [], capacity
        return reader

    def with_hidden_states(self, layers: Sequence[int]) -> "GGUF":
        count = self.weights.size("block_count")
        if not all(0 < layer < count for layer in layers):
            raise AdviceError(
                f"{self.weights.library.name} gives the hidden states 1 to {count - 1} of this model, not all of "
                f"{list(layers)}; use another head, or the model's folder of safetensors"
            )
        reader = self.new(self.capacity)
        reader.output_layers = tuple(layers)
        with self.memory.lock:
            self.memory.observe(layers)
        return reader

    def encode(self, tokens: list[int]) -> list[int]:
        return self.weights.tokens.encode(tokens)

    def _begin(self, rows: int) -> list[Sequences]:
        with self.memory.lock:
            self.memory.reserve(rows * self.capacity, rows)
            return [Sequences(self.memory) for _ in range(rows)]

    def _read(self, tokens: Lists, parents: Lists, scored: Scored) -> Float[Tensor, "rows new columns"]:
        """Tokens beyond the context are not read, and have logits of zero."""
        with self.memory.lock:
            rows = zip(self.rows, tokens, strict=True)
            read = [row.memory.grow(row, new, self.weights.context) for row, new in rows]
            scores = self.scores(read, scored)
            if self.output_layers:
                self.note_states(read)
            return torch.from_numpy(scores)[..., : self.weights.tokens.columns]

    def scores(self, rows: list[list[PlacedToken | None]], scored: Scored) -> Float[np.ndarray, "rows new vocabulary"]:
        """The logits of llama.cpp, and zero where nothing is read."""
        counts = [count_scored(scored, len(row)) for row in rows]
        slots = [
            (index, slot - len(row) + counts[index], token)
            for index, row in enumerate(rows)
            for slot, token in enumerate(row)
            if token
        ]
        shape = (len(rows), max(counts, default=0), self.weights.vocabulary)
        is_scored = [place >= 0 for _, place, _ in slots]
        logits = self.memory.read([token for *_, token in slots], is_scored)
        if len(logits) == shape[0] * shape[1]:
            return logits.reshape(shape)
        scores, places = np.zeros(shape, np.float32), [(index, place) for index, place, _ in slots if place >= 0]
        scores[tuple(np.array(places, np.int64).reshape(-1, 2).T)] = logits
        return scores

    def note_states(self, rows: list[list[PlacedToken | None]]) -> None:
        """Keep the hidden states of tokens that were just read, and zeros for those that were not."""
        outputs = self.memory.outputs
        assert outputs is not None
        is_read, states = [token is not None for row in rows for token in row], outputs.read(self.output_layers)
        if not all(is_read):
            known, states = states, np.zeros((len(is_read), *states.shape[1:]), np.float32)
            states[is_read] = known
        start = 0
        for row, new in zip(self.rows, rows, strict=True):
            row.memory.states.append(states[start : start + len(new)])
            start += len(new)

    def _commit(self, paths: Lists) -> HiddenStates | None:
        rows, states = list(zip(self.rows, paths, strict=True)), None
        if self.output_layers:
            outputs = self.memory.outputs
            assert outputs is not None
            shape = 0, len(self.output_layers), outputs.width
            states = [torch.from_numpy(row.memory.states_of(path, shape)) for row, path in rows]
        with self.memory.lock:
            for row, path in rows:
                row.memory.commit(path)
        return states

    def set_aside(self) -> None:
        if self.weights.is_on_gpu:  # which computes with all cells in little time, and copies them in more
            return
        with self.memory.lock:
            for row in self.rows:
                row.memory.set_aside()

    def _copy(self, row: Row) -> Sequences:
        if row.parents:
            raise AdviceError("a row is copied while tokens are pending; commit some, or none, before")
        with self.memory.lock:
            return row.memory.fork(len(row.kept))

    def _fork(self, fork: "GGUF", row: int, length: int) -> None:
        with self.memory.lock:
            fork.rows[0].memory = self.rows[row].memory.fork(length)
