"""A small draft taught by what a target expected: texts kept whole, laws that are drawn from, and a loss that falls."""

import json

import numpy as np
import pytest
import torch
from multidraft_research.training import small_draft, teaching, texts, writing
from multidraft_research.training.small_draft import Lesson, Vocabulary, Wanted
from multidraft_research.training.texts import Text
from tiny import tiny_model

from multidraft import AdviceError

VOCABULARY = 24


def text(length: int, seed: int, answer: int = 2, temperature: float = 1.0) -> Text:
    """A text of a target that expects a token's successor, most of the time."""
    random = np.random.default_rng(seed)
    tokens = random.integers(VOCABULARY, size=1) + np.arange(length)
    places = np.arange(1, length)
    ids = np.stack([tokens[1:] % VOCABULARY, (tokens[1:] + 5) % VOCABULARY], 1)
    about = {"id": str(seed), "temperature": temperature, "answer": answer}
    return Text(tokens % VOCABULARY, places, ids, np.log(np.tile([[0.9, 0.05]], (len(places), 1))), about)


def test_texts_come_back_from_a_shard(tmp_path):
    ours = [text(5, 1), text(9, 2)]
    texts.save(tmp_path / "p-0.npz", ours)
    for one, other in zip(ours, texts.load_all(tmp_path), strict=True):
        assert one.about == other.about
        for name in ("tokens", "places", "ids"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
        assert np.allclose(one.logs, other.logs, atol=1e-3)
    with pytest.raises(AdviceError, match="write some first"):
        texts.load_all(tmp_path / "none")


def test_the_numbers_of_a_row_are_drawn_from_its_distribution_at_its_temperature():
    logits = torch.randn(1, 7, generator=torch.Generator().manual_seed(0))
    grid = (np.arange(20_000) + 0.5) / 20_000
    drawn = np.concatenate([writing.sample(logits, [0.7], [number]) for number in grid])
    found = np.bincount(drawn, minlength=7) / len(grid)
    assert np.abs(found - (logits[0].double() / 0.7).softmax(0).numpy()).max() < 2 / len(grid)
    assert np.abs(found - logits[0].double().softmax(0).numpy()).max() > 0.01  # at another temperature


def test_a_text_without_chance_ends_where_it_repeats_itself():
    prompt = writing.Prompt(0, "a", "b")  # written at T = 0
    row = writing.Row(prompt, 0, [1, 2], 2 + writing.ANSWER, np.random.default_rng(0), answers=True)
    none = np.empty(0)
    circle = [*range(10, 30)] * 3
    taken = [row.take(token, none, none, end=0, answer=[]) for token in circle]
    assert taken.index(True) == 20 + writing.LOOP - 1
    row.prompt = writing.Prompt(1, "a", "b")
    assert not row.loops()


def test_after_its_own_turn_a_model_answers():
    row = writing.Row(writing.Prompt(1, "self", None), 0, [1, 2], 9, np.random.default_rng(0), answers=False)
    none = np.empty(0)
    assert row.heat == 1.0
    assert not row.take(0, none, none, end=0, answer=[7, 8])
    assert (row.tokens, row.answers, row.heat) == ([1, 2, 0, 7, 8], True, 0.7)
    assert row.take(0, none, none, end=0, answer=[7, 8])


def test_reading_texts_together_is_reading_them_alone():
    model = tiny_model("llama", vocab_size=100)
    said = [teaching.Said(list(range(length)), 2, 4, {"id": str(length)}) for length in (12, 7, 9)]
    together = teaching.read(model, said)
    alone = [teaching.read(model, [one])[0] for one in said]
    for one, other in zip(together, alone, strict=True):
        assert one.about == other.about
        assert one.places[0] == 3
        assert np.allclose(one.logs, other.logs, atol=1e-4)
        with torch.inference_mode():
            whole = model(torch.from_numpy(one.tokens)[None]).logits[0].log_softmax(-1)
        for place, ids, logs in zip(one.places, one.ids, one.logs, strict=True):
            assert np.allclose(whole[place - 1][torch.from_numpy(ids)], logs, atol=1e-4)


def test_the_student_begins_as_rows_and_layers_of_the_target_and_reads_others_as_one():
    target, vocabulary = tiny_model("llama", vocab_size=VOCABULARY), Vocabulary([3, 5, 9], VOCABULARY)
    draft = small_draft.student(target, (1, 0), vocabulary)
    rows = target.model.embed_tokens.weight
    assert draft.lm_head.weight[:3].equal(rows[[3, 5, 9]])
    assert draft.config.target_ids == [3, 5, 9]
    assert vocabulary.read(torch.tensor([9, 3, 4, 0])).tolist() == [2, 0, 3, 3]
    for ours, theirs in ((0, 1), (1, 0)):
        assert draft.model.layers[ours].mlp.up_proj.weight.equal(target.model.layers[theirs].mlp.up_proj.weight)


def test_the_overlap_is_the_sum_of_minima_by_hand():
    vocabulary = Vocabulary([1, 2], 4)
    one = Text(np.array([0, 1]), np.array([1]), np.array([[2, 3, 1]]), np.log([[0.5, 0.3, 0.2]]), {})
    logits, wanted = torch.log(torch.tensor([[0.6, 0.4]])), Wanted.of([one], vocabulary)
    assert small_draft.overlap(logits, wanted, 1.0).item() == pytest.approx(0.2 + 0.4, abs=1e-3)
    loss = small_draft.loss_of(logits, wanted, 0.0).item()
    assert loss == pytest.approx(-0.5 * np.log(0.4) - 0.2 * np.log(0.6), abs=1e-2)
    mixed = small_draft.loss_of(logits, wanted, 0.5).item()
    assert mixed == pytest.approx(loss / 2 - 0.5 * np.log(0.6), abs=1e-2)


def test_a_draft_learns_and_a_run_that_was_stopped_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(small_draft, "CHECKPOINT", 3)
    target = tiny_model("llama", vocab_size=VOCABULARY)
    given = [text(20, seed) for seed in range(12)]
    vocabulary = Vocabulary(texts.frequent(given, 20, VOCABULARY), VOCABULARY)
    lesson = Lesson(layers=(0,), steps=30, batch=80, warmup=2, learning_rate=0.05, embedding_learning_rate=0.05)

    def run(steps: int, name: str) -> small_draft.LlamaForCausalLM:
        path = tmp_path / name
        return next(
            draft for step, _, draft in small_draft.train(target, given, vocabulary, lesson, path) if step == steps
        )

    before = small_draft.acceptance(small_draft.student(target, (0,), vocabulary), given, vocabulary)
    whole = run(30, "whole.pt")
    after = small_draft.acceptance(whole, given, vocabulary)
    assert after["T=1"] > before["T=1"] + 0.2
    assert after["covered"] == pytest.approx(20 / 24, abs=0.1)
    run(7, "stopped.pt")  # a checkpoint after six
    again = run(30, "stopped.pt")
    assert json.dumps(again.config.target_ids) == json.dumps(vocabulary.target_ids)
    assert all(one.equal(other) for one, other in zip(whole.parameters(), again.parameters(), strict=True))


class Counting(writing.Reader):
    """A reader whose model expects a token's successor, and ends after the last one of the vocabulary."""

    def __init__(self):
        self.held: dict[int, int] = {}
        self.passes: list[list[int]] = []

    def tokens(self, said: str) -> list[int]:
        if said == writing.SYSTEM:
            return [1]
        return [0] if said == writing.END else [1, 2] if said.startswith("\n") else [1, 2, len(said) % 7 + 2]

    def forget(self, sequence: int) -> None:
        self.held[sequence] = 0

    def read(self, parts: list[writing.Part]) -> torch.Tensor:
        self.passes.append([part.sequence for part in parts])
        scored = []
        for part in parts:
            assert part.position == self.held[part.sequence]
            self.held[part.sequence] += len(part.tokens)
            scored += part.tokens[len(part.tokens) - part.scored :]
        return 50.0 * torch.eye(100)[(torch.tensor(scored) + 1) % 100]


def test_rows_that_end_are_replaced_at_once_and_every_text_has_its_own_distributions(tmp_path):
    reader, prompts = Counting(), [writing.Prompt(n, str(n), None if n % 2 else "x" * n) for n in range(9)]
    found = list(writing.written(reader, iter(prompts), 4, lambda count: None))
    assert sorted(one.about["number"] for one in found) == list(range(9))
    assert all(row == sorted(row) for row in reader.passes)
    assert max(map(len, reader.passes)) == 4
    assert [len(row) for row in reader.passes].count(4) > len(reader.passes) / 2
    for one in found:
        written = one.tokens[one.places] == (one.tokens[one.places - 1] + 1) % 100
        assert (one.ids[written, 0] == one.tokens[one.places[written]]).all()
        assert one.tokens[-1] == 0
        assert len(one.ids) == len(one.logs) == len(one.places)
        assert one.places[0] == 2  # behind the system's line and the first token
