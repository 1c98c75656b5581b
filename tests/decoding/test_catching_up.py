"""A draft model that has rested reads what it has missed piece by piece, in steps in which these rows draft nothing."""

from collections.abc import Sequence

import torch
from decoded import Way, start
from plans import costs, profile, rates
from tiny import tiny_model
from torch import Tensor

from multidraft.autotune.auto_policy import Auto
from multidraft.decoding.draft import MAX_LAG
from multidraft.decoding.policy import Outlook, PromptReads, StaticTree, TreePolicy
from multidraft.decoding.record import StepRecord
from multidraft.decoding.state import DecodeConfig, State
from multidraft.decoding.step import step
from multidraft.decoding.tree import Tree
from multidraft.models.huggingface.masks import CausalLM
from multidraft.models.reader import MAX_CHUNK_TOKENS as CHUNK
from multidraft.models.reader import Scored
from multidraft.sampling.settings import Sampling
from multidraft.verification.registry import scheme

LENGTHS = (3 * CHUNK // 2, 5, MAX_LAG + 2, MAX_LAG + 1)  # of prompts; their last tokens are roots
DEPTH, STEPS_OF_RUN = 3, 6


class Resting(StaticTree):
    """Its draft model has read no prompt."""

    def begin(self, rows: int, prompt_reads: PromptReads | None = None) -> Outlook:
        return Outlook(model_rests=True)


class Noted(CausalLM):
    """A model that notes the tokens of each row in all of its passes."""

    widths: list[list[int]]

    def new(self, capacity: int) -> "Noted":
        reader = type(self)(self.model, capacity)
        reader.widths = self.widths
        return reader

    def _read(self, tokens: list[list[int]], parents: list[list[int]], scored: Scored) -> Tensor:
        self.widths.append([len(row) for row in tokens])
        return super()._read(tokens, parents, scored)


class Skipping(Noted):
    """Wrong: it does not look at what it reads piece by piece."""

    def _read(self, tokens: list[list[int]], parents: list[list[int]], scored: Scored) -> Tensor:
        return super()._read([[0] * len(row) if len(row) > MAX_LAG + 1 else row for row in tokens], parents, scored)


def rested(
    lengths: Sequence[int], policy: TreePolicy | None = None, widths: list | None = None, kind: type[Noted] = Noted
) -> tuple[State, Way]:
    """A pair whose draft is the target itself: whatever it drafts greedily is accepted if it has read all before it."""
    model = tiny_model("llama", max_position_embeddings=4 * CHUNK).double()
    target, draft = Noted(model), kind(model)
    target.widths = draft.widths = [] if widths is None else widths
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, 20, (length,), generator=generator).tolist() for length in lengths]
    way = DecodeConfig(scheme("top:naive", 1)), policy or Resting(Tree.levels([1] * DEPTH))
    sampling = [Sampling(temperature=0)] * len(prompts)
    return start(prompts, target, draft, way, sampling, max(lengths) + 99, generator), way


def steps(state: State, way: Way, count: int = STEPS_OF_RUN) -> list[StepRecord]:
    """Some steps."""
    records = []
    for _ in range(count):
        state, record = step(state, *way)
        records.append(record)
    return records


def test_what_was_missed_is_read_in_chunks_and_then_all_drafts_are_accepted():
    passes = list[list[int]]()
    state, way = rested(LENGTHS, widths=passes)
    passes.clear()
    records = steps(state, way)
    emitted = [[len(row.tokens) for row in record.emitted] for record in records]
    assert emitted[0] == [1, 1 + DEPTH, 1, 1 + DEPTH]  # the first row takes all of the first chunk
    assert emitted[2:] == [[1 + DEPTH] * 4] * (STEPS_OF_RUN - 2)
    assert max(map(sum, passes)) <= CHUNK + len(LENGTHS) * (1 + MAX_LAG)


def test_rows_that_all_catch_up_draft_nothing():
    """Nobody asks for the draft model's law then."""
    records = steps(*rested([2 * CHUNK + 5, CHUNK]))
    assert [[len(tree) for tree in record.trees] for record in records[:3]] == [[1, 1], [1, 1], [1 + DEPTH, 1]]
    assert [len(row.tokens) for row in records[-1].emitted] == [1 + DEPTH] * 2


def test_a_probe_lasts_until_the_rows_have_caught_up():
    """And goes on while drafts are right. What catching up takes is not taken for the price of a plain step."""
    policy = Auto(profile(by_rows={1: costs(1.0, 0.75, 0.05)}, true_rates=rates(0.1), spent=0.0), 0.0, budget=1e9)
    policy.begin(1, PromptReads())
    policy.probes.pauses[1] = 2
    before = policy.profile.step_count(1, drafted=False)
    records = steps(*rested([3 * CHUNK], policy), count=8)
    drafted = [len(record.trees[0]) > 1 for record in records]
    assert [record.is_catching_up for record in records] == [2 <= number <= 4 for number in range(8)]
    assert drafted == [number >= 5 for number in range(8)]
    assert policy.profile.step_count(1, drafted=False) - before <= 8 - 3 - sum(drafted)


def test_a_draft_model_that_skips_what_it_has_missed_is_caught():
    emitted = [len(row.tokens) for record in steps(*rested(LENGTHS, kind=Skipping))[2:] for row in record.emitted]
    assert min(emitted) < 1 + DEPTH
