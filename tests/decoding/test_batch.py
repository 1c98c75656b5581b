"""Many prompts in one call: each gets the tokens that it gets alone, however many rows decode at a time."""

import math
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from decoded import readers
from heads import head_of
from tiny import tiny_model
from transformers import PreTrainedModel

import multidraft as md
from multidraft.decoding import batch as batches
from multidraft.decoding.batch import Batch
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.prefill import pieces_of, similar
from multidraft.decoding.record import StepRecord
from multidraft.decoding.request import Request, Stop
from multidraft.decoding.state import DecodeConfig, State
from multidraft.decoding.tree import Tree
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.sampling.settings import Sampling

SIZE = 5
WAY = DecodeConfig(md.scheme("anchored:lorenz"), measure=0), StaticTree(Tree.parse("2x1"))


def tables() -> tuple:
    return TableModel(random_table(SIZE, 3, 1), SIZE), TableModel(random_table(SIZE, 3, 2), SIZE)


def tiny() -> tuple:
    return tiny_model("llama"), tiny_model("gpt2")


def with_head() -> tuple:
    return tiny_model("llama"), head_of("eagle3")


def prompts() -> list[list[int]]:
    """Short and long ones, mixed, some of them equal."""
    generator = torch.Generator().manual_seed(0)
    lengths = [1, 9, 2, 30, 3, 3, 14, 1, 5, 60, 4]
    return [torch.randint(0, SIZE, (length,), generator=generator).tolist() for length in lengths]


def requests(texts: list[list[int]]) -> list[Request]:
    """A request for each text, with numbers of new tokens and random numbers of its own."""
    return [
        Request(text, 3 + 5 * (row % 4), generator=torch.Generator().manual_seed(row), stop=Stop(frozenset({3})))
        for row, text in enumerate(texts)
    ]


@torch.inference_mode()
def decoded(models: tuple, texts: list[list[int]], max_num_seqs: float, budget: float | int = math.inf) -> list:
    """The tokens of all texts, and the number of rows of each step."""
    sizes: list[int] = []
    batch = Batch(*readers(*models), *WAY, max_num_seqs, on_record=lambda record, rows: sizes.append(len(rows)))
    batch.add(rows := requests(texts))
    while batch.requests:
        batch.step(budget)
    assert max(sizes) <= max_num_seqs
    return [request.tokens for request in rows]


@pytest.mark.parametrize("models", [tables, tiny, with_head])
@pytest.mark.parametrize(("max_num_seqs", "budget"), [(1, math.inf), (3, math.inf), (3, 4), (8, 1), (math.inf, 7)])
def test_tokens_are_those_of_a_prompt_alone(models, max_num_seqs, budget) -> None:
    """However many rows decode at a time, and in whatever pieces the prompts are read."""
    texts = prompts()
    alone = requests(texts)
    for request in alone:
        batch = Batch(*readers(*models()), *WAY)
        batch.add([request])
        with torch.inference_mode():
            while batch.requests:
                batch.step()
    assert decoded(models(), texts, max_num_seqs, budget) == [request.tokens for request in alone]


def test_rows_that_join_in_another_order_are_caught(monkeypatch) -> None:
    """The broken twin: a batch that forgets which of its rows is which."""

    def swapped(*states: State, extend=batches.extend) -> State:
        state = extend(*states)
        state.rows.reverse()
        return state

    texts = prompts()
    expected = decoded(tables(), texts, 3)
    monkeypatch.setattr(batches, "extend", swapped)
    assert decoded(tables(), texts, 3) != expected


def steps_of(texts: list[list[int]], rows: int, **settings) -> tuple[list[list[int]], int]:
    """The tokens that `generate` returns, and its steps."""
    target, draft = tables()
    counts = dict(max_new_tokens=12, eos_token_id=[3], tree="2x1", **settings)
    generators = [torch.Generator().manual_seed(row) for row in range(len(texts))]
    tokens, info = md.generate(target, draft, texts, generator=generators, max_num_seqs=rows, **counts)
    return [row.tolist() for row in tokens], info.target_passes


def test_as_a_row_ends_the_next_prompt_begins() -> None:
    """So a call takes fewer passes than calls of as many prompts as decode at a time, and gives the same tokens."""
    texts = prompts() * 2
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


def test_pieces_end_together_and_similar_prompts_are_read_side_by_side() -> None:
    assert pieces_of([[1, 2, 3], [4], []], 3) == ([[1], [], []], [[2, 3], [4], []])
    assert pieces_of([[1] * 600], math.inf)[0] == [[1] * 512]
    assert similar([100, 1, 99, 120, 101], budget=300) == [0, 3]
    assert similar([4, 4, 4], budget=9) == [0, 1]


def test_a_request_is_told_its_end_once() -> None:
    """By the reason why it ended: its length, or a token."""
    updates: list = []
    batch = Batch(*tables(), *WAY)
    batch.add(requests(prompts()))
    with torch.inference_mode():
        while batch.requests:
            updates += batch.step()
    ends = [(request, update.end) for request, update in updates if update.end]
    assert len(ends) == len(prompts())
    assert all((request.tokens[-1] == 3) == (end == "stop") for request, end in ends)
    assert all(isinstance(update.error, type(None)) for _, update in updates)


def test_records_name_the_requests_of_their_rows() -> None:
    seen: list[tuple[StepRecord, list[Request]]] = []
    batch = Batch(*tables(), *WAY, 2, on_record=lambda record, rows: seen.append((record, list(rows))))
    batch.add(rows := requests(prompts()[:4]))
    with torch.inference_mode():
        while batch.requests:
            batch.step()
    counted = {request: 0 for request in rows}
    for record, of_step in seen:
        for request, emitted in zip(of_step, record.emitted, strict=True):
            counted[request] += len(emitted.tokens)
    assert all(counted[request] >= len(request.tokens) > 0 for request in rows)


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

    def answer(batch: Batch) -> list[int]:
        batch.add([request := Request([5, 2, 7, 1, 8, 3], 8, Sampling(0))])
        while batch.requests:
            batch.step()
        return request.tokens

    with torch.inference_mode():
        batch = Batch(*readers(*models), *WAY, max_tokens=200)
        answer(batch)
        change(models[role])
        assert answer(batch) == answer(Batch(*readers(*models), *WAY, max_tokens=200))
        assert bool(batch.reused_tokens) == (change is leave)
