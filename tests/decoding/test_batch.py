"""Many prompts in one call: some decode at a time, the next ones begin as they end, and records name them."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from decoded import readers, tables
from heads import head_of
from test_rows_alone import many
from tiny import VOCABULARY, tiny_model
from transformers import PreTrainedModel

import multidraft as md
from multidraft.decoding.batch import Batch
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.prefill import pieces_of, similar
from multidraft.decoding.record import StepRecord
from multidraft.decoding.request import Request
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import NO_DRAFTS, Tree
from multidraft.models.ensemble import LookupThenModel
from multidraft.models.huggingface import masks
from multidraft.models.ngram import Lookup
from multidraft.models.prefix_models import TableModel
from multidraft.models.user_models import as_reader
from multidraft.sampling.settings import Sampling

WAY = DecodeConfig(md.scheme("anchored:lorenz"), measure=0), StaticTree(Tree.parse("2x1"))


def steps_of(texts: list[list[int]], rows: int, **settings) -> tuple[list[list[int]], int]:
    """The tokens that `generate` returns, and its steps."""
    target, draft = tables()
    counts = dict(max_new_tokens=12, eos_token_id=[3], tree="2x1", **settings)
    generators = [torch.Generator().manual_seed(row) for row in range(len(texts))]
    tokens, info = md.generate(target, draft, texts, generator=generators, max_num_seqs=rows, **counts)
    return [row.tolist() for row in tokens], info.target_passes


def test_as_a_row_ends_the_next_prompt_begins() -> None:
    """So a call takes fewer passes than calls of as many prompts as decode at a time, and gives the same tokens."""
    texts = [row.request.prompt for row in many()] * 2
    tokens, passes = steps_of(texts, 4)
    together, _ = steps_of(texts, len(texts))
    in_turn = sum(steps_of(texts[first : first + 4], 4)[1] for first in range(0, len(texts), 4))
    assert tokens == together
    assert passes < in_turn


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rows", [0, -1, 1.5, True, 5000])
def test_other_numbers_of_rows_are_refused(rows) -> None:
    with pytest.raises(md.AdviceError, match=r"max_num_seqs is .*; use a whole number from 1 to 4096"):
        steps_of([[1]], rows)


def test_a_batch_reads_prompts_between_the_steps_of_rows() -> None:
    """With a budget of four tokens a step, a short row gets tokens while a long prompt is read."""
    batch = Batch(*tables(), *WAY)
    short, long = Request([1], 40), Request([0, 1] * 30, 5)
    with torch.inference_mode():
        batch.add([short])
        batch.step()
        batch.add([long])
        while not long.tokens:
            batch.step(prompt_budget=4)
    assert len(short.tokens) > 20


def test_the_first_row_makes_room_for_those_that_wait() -> None:
    """Buffers are copied once, and not with each row that joins."""
    batch = Batch(as_reader(tiny_model("llama")), None, WAY[0], StaticTree(NO_DRAFTS))
    with torch.inference_mode():
        batch.add([Request([1, 2], 4), Request([1] * 40, 4)])
        batch.step(prompt_budget=2)
    assert (len(batch.running), batch.state.target.cache.storage.rows) == (1, 2)


def test_pieces_end_together_and_similar_prompts_are_read_side_by_side() -> None:
    assert pieces_of([[1, 2, 3], [4], []], 3) == ([[1], [], []], [[2, 3], [4], []])
    assert pieces_of([[1] * 600], math.inf)[0] == [[1] * 512]
    assert similar([100, 1, 99, 120, 101], budget=300) == [0, 3]
    assert similar([4, 4, 4], budget=9) == [0, 1]


def test_a_request_is_told_its_end_once() -> None:
    """By the reason why it ended: its length, or a token."""
    updates: list = []
    batch = Batch(*tables(), *WAY)
    batch.add(row.request for row in many())
    with torch.inference_mode():
        while batch.requests:
            updates += batch.step()
    ends = [(request, update.end) for request, update in updates if update.end]
    assert len(ends) == len(many())
    assert all((request.tokens[-1] == 3) == (end == "stop") for request, end in ends)
    assert all(isinstance(update.error, type(None)) for _, update in updates)


def test_records_name_the_requests_of_their_rows() -> None:
    seen: list[tuple[StepRecord, list[Request]]] = []
    batch = Batch(*tables(), *WAY, 2, on_record=lambda record, rows: seen.append((record, list(rows))))
    batch.add(rows := [row.request for row in many()[:4]])
    with torch.inference_mode():
        while batch.requests:
            batch.step()
    counted = {request: 0 for request in rows}
    for record, of_step in seen:
        for request, emitted in zip(of_step, record.emitted, strict=True):
            counted[request] += len(emitted.tokens)
    assert all(counted[request] >= len(request.tokens) > 0 for request in rows)


@torch.inference_mode()
def answered(batch: Batch, prompt: list[int]) -> list[int]:
    """The likeliest tokens behind a prompt."""
    batch.add([request := Request(prompt, 8, Sampling(0))])
    while batch.requests:
        batch.step()
    return request.tokens


STRENGTH = {"": 1.0}  # of a hook


def scale_weights(model: PreTrainedModel) -> None:
    for weight in model.parameters():
        weight.data.mul_(-0.7)


def change_attribute(model: PreTrainedModel) -> None:
    for module in model.modules():
        if hasattr(module, "scaling"):
            module.scaling = 0.9


def change_config(model: PreTrainedModel) -> None:
    model.config.rms_norm_eps, model.config.attention_dropout = 0.1, 0.0


def change_hook(model: PreTrainedModel) -> None:
    STRENGTH[""] = 0.3


def leave(model: PreTrainedModel) -> None:
    """Nothing changes."""


@pytest.mark.parametrize("change", [scale_weights, change_attribute, change_config, change_hook, leave])
@pytest.mark.parametrize("role", [0, 1])
def test_prefixes_of_what_a_model_was_are_not_reused(change: Callable[[PreTrainedModel], None], role: int) -> None:
    """As where a trainer writes the weights of a server's model between two requests, or somebody sets an adapter."""
    models = deepcopy(tiny_model("llama")), deepcopy(tiny_model("llama", num_hidden_layers=1))
    STRENGTH[""] = 1.0
    if change is change_hook:
        models[role].model.layers[0].register_forward_hook(lambda module, inputs, output: output * STRENGTH[""])

    batch, prompt = Batch(*readers(*models), *WAY, max_tokens=200), [5, 2, 7, 1, 8, 3]
    answered(batch, prompt)
    change(models[role])
    assert answered(batch, prompt) == answered(Batch(*readers(*models), *WAY, max_tokens=200), prompt)
    assert bool(batch.reused_tokens) == (change is leave)


def test_a_kept_row_does_not_hide_that_a_model_is_in_training_mode() -> None:
    model = deepcopy(tiny_model("llama"))
    batch = Batch(*readers(model, tiny_model("llama", num_hidden_layers=1)), *WAY, max_tokens=200)
    answered(batch, [5, 2, 7, 1, 8, 3])
    model.train()
    with pytest.raises(md.AdviceError, match="training mode"):
        answered(batch, [5, 2, 7, 1, 8, 3, 9])


def test_models_are_looked_through_once_for_prompts_that_share_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_through = list[object]()

    def note_view(model: PreTrainedModel, view_of=masks.view_of) -> object:
        looked_through.append(model)
        return view_of(model)

    monkeypatch.setattr(masks, "view_of", note_view)
    models = tiny_model("llama"), tiny_model("llama", num_hidden_layers=1)
    batch = Batch(*readers(*models), *WAY, max_tokens=200)
    for last in 3, 4, 5:
        answered(batch, [5, 2, 7, 1, 8, last])
    assert looked_through == [*models]


@pytest.mark.parametrize("asks", [False, True])
def test_the_next_turn_reads_only_what_is_new_though_a_head_was_never_asked(asks: bool) -> None:
    policy = StaticTree(Tree.parse("1") if asks else NO_DRAFTS)
    draft = LookupThenModel([Lookup(VOCABULARY), head_of("eagle3")])
    batch = Batch(as_reader(tiny_model("llama")), draft, WAY[0], policy, max_tokens=200)
    turn = [5, 2, 7, 1, 8, 3]
    answer = answered(batch, turn)
    longer = [*turn, *answer, 1, 2]
    assert answered(batch, longer) == answered(Batch(as_reader(tiny_model("llama")), None, *WAY), longer)
    assert batch.reused_tokens == len(turn) + len(answer) - 1  # the last token is in no cache


def test_a_prompt_beside_running_rows_takes_no_room_for_new_tokens() -> None:
    batch, slots = Batch(as_reader(tiny_model("llama")), None, *WAY), list[int]()
    for prompt in [1, 2, 3, 4], [5, 6, 7, 8, 9, 1]:
        batch.add([Request(prompt, 30)])
        batch.step(prompt_budget=2)
        slots.append(batch.reading.target.cache.storage.capacity)
        batch.step()
        batch.step()
    assert slots == [4 + 30 + batch.slack, 6]
    assert len(batch.running) == 2
    assert batch.state.target.cache.storage.capacity == slots[0]


@pytest.mark.parametrize("looks_up", [False, True])
def test_what_look_ups_read_takes_nothing_of_a_turns_budget(looks_up: bool) -> None:
    target, draft = tables()
    batch = Batch(*readers(target, Lookup(target.vocabulary) if looks_up else draft), *WAY)
    batch.add(requests := [Request([token] * 6, 4) for token in range(4)])
    with torch.inference_mode():
        batch.step(prompt_budget=24)  # of which the target reads five in each prompt
    assert len(batch.running) == (len(requests) if looks_up else 0)


class FewPaths(TableModel):
    """A model that tells some paths apart, as GGUF files do."""

    sequences = 40


@pytest.mark.parametrize("kept", [0, 30])
def test_kept_rows_let_many_prompts_be_read_side_by_side(kept: int) -> None:
    """Though there are as many of them as may be, beside the trees of the rows that decode."""
    policy = StaticTree(Tree.parse("2"))
    policy.limits = replace(policy.limits, max_paths=1, shared_paths=20)
    batch = Batch(FewPaths(tables()[0].conditional, 5), tables()[1], WAY[0], policy, 8, 4000)
    for token in range(kept):
        answered(batch, [token % 5, token // 5 % 5, token // 25, 4])
    assert len(batch.prefixes.rows) == min(kept, 18)
    groups = batch.prompt_groups
    batch.add([Request([token % 5, 1, token // 5, 2, 2], 3) for token in range(8)])
    with torch.inference_mode():
        batch.step()
    assert batch.prompt_groups == groups + 1
