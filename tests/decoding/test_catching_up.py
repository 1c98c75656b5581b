"""A draft model that has rested reads what it has missed piece by piece, in steps in which these rows draft nothing."""

from collections.abc import Sequence

import pytest
import torch
from decoded import Way, start
from plans import costs, profile, rates
from tiny import tiny_model

from multidraft.autotune.auto_policy import Auto
from multidraft.autotune.plans import Profile
from multidraft.decoding import draft as drafting
from multidraft.decoding.policy import Outlook, StaticTree, TreePolicy
from multidraft.decoding.record import StepRecord
from multidraft.decoding.state import DecodeConfig, State
from multidraft.decoding.step import step
from multidraft.decoding.tree import Tree
from multidraft.models.huggingface.masks import CausalLM
from multidraft.sampling.settings import Sampling
from multidraft.verification.registry import scheme

CHUNK, MAX_LAG = 64, 8  # smaller than they are, so that prompts can be short
LENGTHS = (3 * CHUNK // 2, 5, MAX_LAG + 2, MAX_LAG + 1)  # of prompts; their last tokens are roots
DEPTH, STEPS_OF_RUN = 3, 6


@pytest.fixture(autouse=True)
def small_limits(monkeypatch) -> None:
    monkeypatch.setattr(drafting, "MAX_CHUNK_TOKENS", CHUNK)
    monkeypatch.setattr(drafting, "MAX_LAG", MAX_LAG)


class Resting(StaticTree):
    """Its draft model has read no prompt."""

    def begin(self, rows: int, prompt_reads: float | None = None) -> Outlook:
        return Outlook(model_rests=True)


def rested(lengths: Sequence[int], policy: TreePolicy | None = None) -> tuple[State, Way]:
    """A pair whose draft is the target itself: whatever it drafts greedily is accepted if it has read all before it."""
    model = tiny_model("llama", max_position_embeddings=4 * CHUNK).double()
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, 20, (length,), generator=generator).tolist() for length in lengths]
    way = DecodeConfig(scheme("top:naive", 1)), policy or Resting(Tree.levels([1] * DEPTH))
    sampling = [Sampling(temperature=0)] * len(prompts)
    return start(prompts, model, model, way, sampling, max(lengths) + 99, generator), way


@pytest.fixture
def passes(monkeypatch) -> list[list[int]]:
    """The tokens of each row in all passes of all readers."""
    widths: list[list[int]] = []

    def counting(reader, tokens, parents, scored, read=CausalLM._read):
        widths.append([len(row) for row in tokens])
        return read(reader, tokens, parents, scored)

    monkeypatch.setattr(CausalLM, "_read", counting)
    return widths


def steps(state: State, way: Way, count: int = STEPS_OF_RUN) -> list[StepRecord]:
    """Some steps."""
    records = []
    for _ in range(count):
        state, record = step(state, *way)
        records.append(record)
    return records


def test_what_was_missed_is_read_in_chunks_and_then_all_drafts_are_accepted(passes):
    state, way = rested(LENGTHS)
    passes.clear()
    records = steps(state, way)
    emitted = [[len(row.tokens) for row in record.emitted] for record in records]
    assert emitted[0] == [1, 1 + DEPTH, 1, 1 + DEPTH]  # the first row takes all of the first chunk
    assert emitted[2:] == [[1 + DEPTH] * 4] * (STEPS_OF_RUN - 2)
    assert max(map(sum, passes)) <= CHUNK + len(LENGTHS) * (1 + MAX_LAG)


def test_rows_that_all_catch_up_draft_nothing(passes):
    """Nobody asks for the draft model's law then."""
    records = steps(*rested([2 * CHUNK + 5, CHUNK]))
    assert [[len(tree) for tree in record.trees] for record in records[:3]] == [[1, 1], [1, 1], [1 + DEPTH, 1]]
    assert [len(row.tokens) for row in records[-1].emitted] == [1 + DEPTH] * 2


def test_a_probe_lasts_until_the_rows_have_caught_up():
    """And goes on while drafts are right. What catching up takes is not taken for the price of a plain step."""
    policy = Auto(Profile({}), 0.0, budget=1e9)
    policy.profile = profile(by_rows={1: costs(1.0, 0.75, 0.05)}, true_rates=rates(0.1), spent=0.0)
    policy.begin(1, 0.0)
    policy.pause = 2
    before = policy.profile.step_count(1, drafted=False)
    records = steps(*rested([3 * CHUNK], policy), count=8)
    drafted = [len(record.trees[0]) > 1 for record in records]
    assert [record.is_catching_up for record in records] == [2 <= number <= 4 for number in range(8)]
    assert drafted == [number >= 5 for number in range(8)]
    assert policy.profile.step_count(1, drafted=False) - before <= 8 - 3 - sum(drafted)


def test_a_draft_model_that_skips_what_it_has_missed_is_caught(monkeypatch):
    """The broken twin counts a piece as read without reading it."""
    read = drafting.tokens_to_read

    def skipping(row, tree, nodes, depth):
        if depth == 0 and tree.backlog:
            row.unread, tree.backlog = row.unread[tree.backlog :], 0
        return read(row, tree, nodes, depth)

    monkeypatch.setattr(drafting, "tokens_to_read", skipping)
    emitted = [len(row.tokens) for record in steps(*rested(LENGTHS))[2:] for row in record.emitted]
    assert min(emitted) < 1 + DEPTH
