"""A draft model that has rested reads what it has missed piece by piece, in steps in which these rows draft nothing."""

from collections.abc import Sequence

import pytest
import torch
from tiny import tiny_model

from multidraft.decoding import draft as drafting
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.prefill import start
from multidraft.decoding.record import StepRecord
from multidraft.decoding.state import DecodeConfig, State
from multidraft.decoding.step import step
from multidraft.decoding.tree import Tree
from multidraft.models.base import CHUNK
from multidraft.models.huggingface import CausalLM
from multidraft.sampling.settings import Sampling
from multidraft.verification.registry import scheme

LENGTHS = (3 * CHUNK // 2, 5, drafting.MAX_LAG + 2, drafting.MAX_LAG + 1)  # of prompts; their last tokens are roots
DEPTH, STEPS = 3, 6


class Resting(StaticTree):
    """Its draft model has read no prompt."""

    rests = True


def rested(lengths: Sequence[int]) -> tuple[State, DecodeConfig]:
    """A pair whose draft is the target itself: whatever it drafts greedily is accepted if it has read all before it."""
    model = tiny_model("llama", max_position_embeddings=4 * CHUNK).double()
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, 20, (length,), generator=generator).tolist() for length in lengths]
    config = DecodeConfig(scheme("top:naive", 1), Resting(Tree.levels([1] * DEPTH)))
    sampling = [Sampling(temperature=0)] * len(prompts)
    return start(prompts, model, model, config, sampling, max(lengths) + 99, generator), config


@pytest.fixture
def passes(monkeypatch) -> list[list[int]]:
    """The tokens of each row in all passes of all readers."""
    widths: list[list[int]] = []

    def forward(reader, tokens, parents, scored="all", read=CausalLM.forward):
        widths.append([len(row) for row in tokens])
        return read(reader, tokens, parents, scored)

    monkeypatch.setattr(CausalLM, "forward", forward)
    return widths


def steps(state: State, config: DecodeConfig) -> list[StepRecord]:
    """Some steps."""
    records = []
    for _ in range(STEPS):
        state, record = step(state, config)
        records.append(record)
    return records


def test_what_was_missed_is_read_in_chunks_and_then_all_drafts_are_accepted(passes):
    state, config = rested(LENGTHS)
    passes.clear()
    records = steps(state, config)
    emitted = [[len(row.tokens) for row in record.emitted] for record in records]
    assert emitted[0] == [1, 1 + DEPTH, 1, 1 + DEPTH]  # the first row takes all of the first chunk
    assert emitted[2:] == [[1 + DEPTH] * 4] * (STEPS - 2)
    assert max(map(sum, passes)) <= CHUNK + len(LENGTHS) * (1 + drafting.MAX_LAG)


def test_rows_that_all_catch_up_draft_nothing(passes):
    """Nobody asks for the draft model's law then."""
    records = steps(*rested([2 * CHUNK + 9, CHUNK]))
    assert [[len(tree) for tree in record.trees] for record in records[:3]] == [[1, 1], [1, 1], [1 + DEPTH, 1]]
    assert [len(row.tokens) for row in records[-1].emitted] == [1 + DEPTH] * 2


def test_a_draft_model_that_skips_what_it_has_missed_is_caught(monkeypatch):
    """The broken twin counts a piece as read without reading it."""
    read = drafting.reading

    def skipping(row, tree, nodes, depth):
        if depth == 0 and tree.backlog:
            row.unread, tree.backlog = row.unread[tree.backlog :], 0
        return read(row, tree, nodes, depth)

    monkeypatch.setattr(drafting, "reading", skipping)
    emitted = [len(row.tokens) for record in steps(*rested(LENGTHS))[2:] for row in record.emitted]
    assert min(emitted) < 1 + DEPTH
