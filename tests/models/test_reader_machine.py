"""A reader's life at random: rows come with texts or with nothing, read, draft, give up, leave, and go on elsewhere.

After everything each row's logits are those of reading its whole text anew.
"""

from collections.abc import Callable

import pytest
import torch
from hybrids import hybrid
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from lives import run_lives
from reading import TOLERANCE, Forest, Session, chain, drawn, error, forest
from tiny import tiny_model
from torch import Tensor
from transformers import PreTrainedModel

from multidraft.models.huggingface.kv_cache import BufferLayer, Storage, TreeCache
from multidraft.models.huggingface.masks import CausalLM
from multidraft.models.reader import Reader
from multidraft.models.user_models import as_reader

MAX_ROWS, MAX_LENGTH, STEPS_OF_LIFE = 33, 48, 50
ENOUGH_LIVES = 200  # to meet what is broken: the first that does ends a test
CHECKED = 5  # rows of a batch whose logits are compared, others each time
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: tiny_model("llama"),
    "gemma3": lambda: tiny_model("gemma3"),
    "qwen3_next": lambda: hybrid("qwen3_next"),
    "lfm2": lambda: hybrid("lfm2"),
}
ALLOWED = 10 * TOLERANCE  # transformers itself rounds [25] in Qwen3-Next by 1.5e-4, beside itself in float64
SEEDS = st.integers(0, 2**32 - 1)
ROWS = st.one_of(st.integers(1, 3), st.integers(1, 5), st.integers(1, MAX_ROWS))


class Life(RuleBasedStateMachine):
    """One reader beside the texts that its rows should hold; no reader where there are no rows."""

    model: PreTrainedModel

    def __init__(self) -> None:
        super().__init__()
        self.run: Session | None = None

    def reader(self, capacity: int) -> Reader:
        """A reader that has read nothing."""
        return as_reader(self.model).new(capacity)

    def session(self, texts: list[list[int]], seed: int, capacity: int) -> Session:
        """A new reader that has read these texts."""
        session = Session(self.model, self.reader(capacity), texts, torch.Generator().manual_seed(seed))
        session.model.forward(texts, [chain(len(text)) for text in texts], "none")
        session.model.commit([list(range(len(text))) for text in texts])
        return session

    @rule(rows=ROWS, seed=SEEDS, empty=st.booleans(), capacity=st.sampled_from([4, 64]))
    def come(self, rows: int, seed: int, empty: bool, capacity: int) -> None:
        """Rows join, or begin; with `empty` they have read nothing, as while a draft model rests."""
        rows = min(rows, MAX_ROWS - (len(self.run.sequences) if self.run else 0))
        if rows < 1:
            return
        generator = torch.Generator().manual_seed(seed)
        texts = [[] if empty else drawn(drawn(1, generator, 0, 9)[0], generator) for _ in range(rows)]
        other = self.session(texts, seed, capacity)
        if self.run is None:
            self.run = other
            return
        self.run.model.extend(other.model)
        self.run.sequences += other.sequences

    @precondition(lambda self: self.run)
    @rule(seed=SEEDS, split=st.sampled_from([0, 0, 2]), accepts=st.booleans(), skips_rows=st.booleans())
    def draft(self, seed: int, split: int, accepts: bool, skips_rows: bool) -> None:
        """Trees are read, of all rows or some; paths in them are kept, or the step is given up."""
        assert self.run is not None
        self.run.generator = torch.Generator().manual_seed(seed)
        trees = forest(len(self.run.sequences), 1 + seed % 5, self.run.generator)
        off = [
            len(text) > MAX_LENGTH or (skips_rows and (seed >> row) % 2) for row, text in enumerate(self.run.sequences)
        ]
        trees = Forest(
            *([[] if o else values for o, values in zip(off, parts, strict=True)] for parts in vars(trees).values())
        )
        if not any(trees.tokens):
            return
        assert self.wrong(trees, self.run.read(trees, split), seed) < ALLOWED
        counts = [len(tokens) if accepts else 0 for tokens in trees.tokens]
        ends = [drawn(1, self.run.generator, 0, count)[0] if count else -1 for count in counts]
        self.run.commit(trees, [trees.path(row, end) if end >= 0 else [] for row, end in enumerate(ends)])

    def wrong(self, trees: Forest, logits: Tensor, seed: int) -> float:
        """How wrong the logits of some rows are."""
        assert self.run is not None
        rows = [row for row in range(len(trees.tokens)) if trees.tokens[row]]
        rows = [rows[(seed + place) % len(rows)] for place in range(min(CHECKED, len(rows)))]
        parts = logits.split([len(tokens) for tokens in trees.tokens])
        session = Session(self.model, self.run.model, [self.run.sequences[row] for row in rows], self.run.generator)
        return error(torch.cat([parts[row] for row in rows]), session.expected(trees.of(rows)))

    @precondition(lambda self: self.run)
    @rule(seed=SEEDS, count=ROWS)
    def leave(self, seed: int, count: int) -> None:
        """Some rows go on, in any order."""
        assert self.run is not None
        order = torch.randperm(len(self.run.sequences), generator=torch.Generator().manual_seed(seed))
        self.run.gather(order[:count].tolist())

    @precondition(lambda self: self.run)
    @rule()
    def all_leave(self) -> None:
        """The batch has come to its end."""
        self.run = None

    @precondition(lambda self: self.run)
    @rule(seed=SEEDS, capacity=st.sampled_from([4, 64]))
    def go_on_elsewhere(self, seed: int, capacity: int) -> None:
        """The beginning of a row is read on by itself."""
        assert self.run is not None
        row = seed % len(self.run.sequences)
        if not (text := self.run.sequences[row]):
            return
        length = 1 + seed % len(text)
        part = Session(self.model, self.run.model.fork(row, length, capacity), [text[:length]], self.run.generator)
        trees = forest(1, 2, part.generator)
        assert error(part.read(trees), part.expected(trees)) < ALLOWED


def live(name: str, lives: int, kind: type[Life] = Life) -> None:
    """So many lives of a reader of this model."""
    run_lives(kind, lives, STEPS_OF_LIFE, model=MODELS[name]())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "lives"),
    [("llama", 5), ("qwen3_next", 2), *(pytest.param(name, 200, marks=pytest.mark.slow) for name in MODELS)],
)
def test_rows_are_read_as_alone_whatever_comes(name: str, lives: int) -> None:
    live(name, lives)


class Forgetful(Storage):
    """Wrong: it makes no room for rows that have read nothing."""

    def reserve(self, rows: int, capacity: int) -> None:
        if capacity:
            super().reserve(rows, capacity)


class ForgetfulCache(TreeCache):
    """A cache with such a storage."""

    def __init__(self, layers: int, capacity: int):
        super().__init__(layers, capacity)
        storage = Forgetful(layers, 1, capacity)
        self._hold(storage, [BufferLayer(storage) for _ in range(layers)])


class ForgetfulReader(CausalLM):
    """A reader with such a cache."""

    def __init__(self, model: PreTrainedModel, capacity: int):
        super().__init__(model, capacity)
        self.cache = ForgetfulCache(model.config.num_hidden_layers, capacity)

    def new(self, capacity: int) -> "ForgetfulReader":
        return ForgetfulReader(self.model, capacity)


class ForgetfulLife(Life):
    """A life of such a reader."""

    def reader(self, capacity: int) -> Reader:
        return ForgetfulReader(self.model, capacity)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_rows_without_a_place_are_caught() -> None:
    with pytest.raises((IndexError, AssertionError, RuntimeError)):
        live("llama", ENOUGH_LIVES, ForgetfulLife)
