"""An engine of one's own: a recurrent table with batches, which passes the checks of the readers that are shipped.

It has a state for each token, half of that of the token before and the token's row of a table; its logits are the
state's products with another table. The rows of a batch are read side by side, node by node.
"""

from types import SimpleNamespace

import pytest
import torch
from lives import run_lives
from reading import PROMPTS, TOLERANCE, Session, begin_session, error, worst_error_of_life
from test_reader_machine import STEPS_OF_LIFE, Life
from tiny import VOCABULARY
from torch import Tensor

import multidraft as md
from multidraft.models.reader import Lists, Reader, Scored

WIDTH = 8


class Table:
    """The tables, and what they give for whole texts."""

    def __init__(self, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        self.inputs, self.outputs = torch.randn(2, VOCABULARY, WIDTH, generator=generator)

    def __call__(self, texts: Tensor, use_cache: bool = False) -> SimpleNamespace:
        states = [torch.zeros(len(texts), WIDTH)]
        for tokens in texts.unbind(1):
            states.append(states[-1] / 2 + self.inputs[tokens])
        return SimpleNamespace(logits=torch.stack(states[1:], 1) @ self.outputs.T)


class TableReader(Reader):
    """A reader of tables. `states` holds the state of each row's last kept token, then those of pending ones."""

    vocabulary = VOCABULARY

    def __init__(self, table: Table):
        self.table = self.source = table
        self.states = torch.zeros(0, 1, WIDTH)

    def new(self, capacity: int) -> "TableReader":
        return TableReader(self.table)

    def _begin(self, rows: int) -> list[None]:
        self.states = torch.zeros(rows, 1, WIDTH)
        return [None] * rows

    def _read(self, tokens: Lists, parents: Lists, scored: Scored) -> Tensor:
        width = max(map(len, tokens), default=0)
        pending = [len(row.tokens) - len(row_tokens) for row, row_tokens in zip(self.rows, tokens, strict=True)]
        places = torch.tensor([[first + node for node in range(1, width + 1)] for first in pending])
        self.states = torch.nn.functional.pad(self.states, (0, 0, 0, width))
        rows = torch.arange(len(tokens))
        last = torch.tensor([len(row_tokens) - 1 for row_tokens in tokens]).clamp(min=0)
        for node in range(width):
            above = torch.tensor([1 + row[node] if node < len(row) else 0 for row in parents])
            read = torch.tensor([row[node] if node < len(row) else 0 for row in tokens])
            self.states[rows, places[:, node]] = self.states[rows, above] / 2 + self.table.inputs[read]
        if scored == "none" or not width:
            return torch.zeros(len(tokens), 0, VOCABULARY)
        states = self.states[rows[:, None], places]
        return (states if scored == "all" else states[rows, last][:, None]) @ self.table.outputs.T

    def _commit(self, paths: Lists) -> None:
        ends = torch.tensor([1 + path[-1] if path else 0 for path in paths])
        self.states = self.states[torch.arange(len(paths)), ends][:, None]

    def _gather(self, rows: list[int]) -> None:
        self.states = self.states[rows]

    def _extend(self, other: "TableReader") -> None:
        self.states = torch.cat([self.states, other.states])

    def _fork(self, fork: "TableReader", row: int, length: int) -> None:
        fork.read_again()  # the states of tokens before the last one are gone


class TableLife(Life):
    """Its life at random."""

    def session(self, texts: list[list[int]], seed: int, capacity: int) -> Session:
        session = Session(self.model, TableReader(self.model), texts, torch.Generator().manual_seed(seed))
        session.model.forward(texts, [list(range(-1, len(text) - 1)) for text in texts], "none")
        session.model.commit([list(range(len(text))) for text in texts])
        return session


def test_trees_are_read_as_paths_over_a_whole_life():
    table = Table()
    assert worst_error_of_life(lambda prompts=PROMPTS: begin_session(table, TableReader(table), prompts)) < TOLERANCE


@pytest.mark.usefixtures("unchecked")
def test_rows_are_read_as_alone_whatever_comes():
    run_lives(TableLife, 20, STEPS_OF_LIFE, model=Table())


@pytest.mark.parametrize("hook", ["_commit", "_gather", "_extend", "_fork"])
def test_the_checks_catch_a_hook_that_does_nothing(hook: str, monkeypatch):
    monkeypatch.setattr(TableReader, hook, lambda *_: None)
    with pytest.raises((AssertionError, IndexError, RuntimeError)):
        test_trees_are_read_as_paths_over_a_whole_life()


def test_it_decodes_as_a_target_and_as_a_drafter():
    target, draft = TableReader(Table()), TableReader(Table(1))
    rows, _ = md.generate(target, draft, [[1, 2, 3], [4]], temperature=0, max_new_tokens=6, tree="2x1x1")
    for row, text in zip(rows, ([1, 2, 3], [4]), strict=True):
        for token in row.tolist():
            assert token == int(Table()(torch.tensor([text])).logits[0, -1].argmax())
            text = [*text, token]


def test_rows_of_other_tables_are_refused():
    reader, other = TableReader(Table()), TableReader(Table(1))
    for model in (reader, other):
        model.forward([[1]], [[-1]], "none")
        model.commit([[0]])
    with pytest.raises(md.AdviceError, match="two different models"):
        reader.extend(other)
    assert error(reader.forward([[2]], [[-1]]).logits[0], Table()(torch.tensor([[1, 2]])).logits[:, -1]) < TOLERANCE
