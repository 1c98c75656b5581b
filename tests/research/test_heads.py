"""Heads and small drafts trained on a target: its states and laws, depths that line up, and less loss."""

import json
import re
import shutil
import signal
from contextlib import nullcontext
from copy import deepcopy

import numpy as np
import pytest
import torch
from heads import logits_along, own_text
from multidraft_research.cli import train_head
from multidraft_research.training import conversations as written_before
from multidraft_research.training import descent, small_draft, texts, writing
from multidraft_research.training.conversations import TokenizedChat
from multidraft_research.training.heads import captured, run, target_text, train
from multidraft_research.training.heads.captured import CapturedText
from multidraft_research.training.heads.drafts import Depths, TextBatch, draft_along
from multidraft_research.training.heads.train import HeadPlan, HeadSettings
from multidraft_research.training.small_draft import TargetProbabilities, TokenSet
from multidraft_research.training.texts import TopText
from templates import FAMILIES as TEMPLATES
from tiny import tiny_model
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from multidraft import AdviceError
from multidraft.models.heads.head_files import load_head

SIZE, LAYERS = 61, (0, 1, 2)
VOCABULARY = TokenSet(sorted({*range(0, 40), 50}), SIZE)
WORDS = 24  # of the smaller drafts' target
KINDS = ["eagle3", "dflash", "medusa"]


def conversations(count: int, longest: int = 14) -> list[TokenizedChat]:
    """Texts that are easy to guess: each token is the one before it and three."""
    random = np.random.default_rng(3)
    sizes = random.integers(8, longest, count)
    firsts = random.integers(SIZE, size=count)
    rows = [(first + 3 * np.arange(size)) % SIZE for first, size in zip(firsts, sizes, strict=True)]
    about = {"temperature": 1.0, "answer": 3}
    return [TokenizedChat(row.tolist(), 1, 3, about | {"id": str(number)}) for number, row in enumerate(rows)]


@pytest.fixture(scope="module")
def seen() -> list[CapturedText]:
    """The texts, with a random target's states and, so that there is something to learn, the texts' own laws."""
    captured_by_index = dict(captured.read_texts(tiny_model("llama"), conversations(30), LAYERS))
    for captured_text in captured_by_index.values():
        captured_text.text.ids = np.stack(
            [
                captured_text.text.tokens[captured_text.text.places],
                captured_text.text.tokens[captured_text.text.places] * 0,
            ],
            1,
        )
        captured_text.text.logs = np.log(np.tile([[0.95, 0.04]], (len(captured_text.text.places), 1)))
    return [captured_by_index[number] for number in range(len(captured_by_index))]


def test_states_and_laws_are_the_targets_whatever_was_read_beside_them(tmp_path):
    target, texts_read = tiny_model("llama"), conversations(5)
    [(path, tokens)] = captured.capture(target, texts_read, LAYERS, tmp_path, "training")
    assert tokens == sum(len(captured_text.tokens) for captured_text in texts_read)
    changed = path.stat().st_mtime_ns
    list(captured.capture(target, texts_read, LAYERS, tmp_path, "training"))
    assert path.stat().st_mtime_ns == changed
    for captured_text, conversation in zip(captured.load_all(tmp_path, "training"), texts_read, strict=True):
        with torch.inference_mode():
            output = target(torch.tensor([conversation.tokens]), output_hidden_states=True)
        expected = torch.stack(output.hidden_states, 2)[0].bfloat16()  # both layers, and the last one normed
        assert torch.allclose(captured_text.states[:, :2].float(), expected[:, :2].float(), atol=1e-2)
        assert torch.allclose(captured_text.states[:, -1].float(), expected[:, -1].float(), atol=1e-2)
        logs = output.logits[0].log_softmax(-1)
        for place, ids, kept in zip(
            captured_text.text.places, captured_text.text.ids, captured_text.text.logs, strict=True
        ):
            assert np.allclose(logs[place - 1][torch.from_numpy(ids).long()], kept, atol=1e-2)
    with pytest.raises(AdviceError, match="give more text"):
        captured.load_all(tmp_path, "held")


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_what_is_trained_at_a_depth_is_what_a_reader_drafts_there(kind, seen):
    target, texts = tiny_model("llama"), seen[:3]
    head = train.new_head(
        HeadPlan(kind, VOCABULARY.size, layers=2, heads=3, block=4, mask_token=7), target, VOCABULARY, 0
    )
    batch, checked = TextBatch.of(texts, VOCABULARY), 0
    for depth, logits, laws in draft_along(head, batch, Depths(3, 0.7, torch.Generator().manual_seed(1))):
        for row, place in zip(logits, laws.tolist(), strict=True):
            text, at = next((r, p) for r, p in torch.argwhere(batch.laws == place).tolist())
            known = at - depth  # the token that the target has drawn, and not read
            tokens, states = texts[text].text.tokens.tolist(), texts[text].states[:known].float()
            read = states[:, -1:] if kind == "medusa" else states[:, :-1]
            expected = logits_along(head, read, tokens[: known + 1], tokens[known + 1 : at])
            assert torch.allclose(row, expected, atol=1e-3), (depth, at)
            checked += 1
    assert checked > 30


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_learns_and_a_run_that_was_stopped_goes_on_to_the_same_weights(kind, seen, tmp_path):
    target = tiny_model("llama")
    plan = HeadPlan(kind, VOCABULARY.size, heads=2, block=3, mask_token=7)
    settings = HeadSettings(
        steps=25, batch=60, learning_rate=0.05, other_learning_rate=0.02, warmup=2, depth=2, share=0.5
    )

    def run(steps: int, name: str, stop: bool = False):
        head, path = train.new_head(plan, target, VOCABULARY, 0), tmp_path / name
        for step, _, _ in train.train(head, seen, VOCABULARY, settings, path):
            if stop and step == steps:
                signal.raise_signal(signal.SIGINT)
            elif step == steps:
                break
        return head

    before = train.acceptance(train.new_head(plan, target, VOCABULARY, 0), seen, VOCABULARY, 2)["T=1"]
    whole = run(25, "whole.pt")
    after = train.acceptance(whole, seen, VOCABULARY, 2)["T=1"]
    assert all(late > early + 0.04 for early, late in zip(before, after, strict=True))
    with pytest.raises(KeyboardInterrupt):
        run(7, "stopped.pt", stop=True)  # the step that it comes in is not lost
    assert torch.load(tmp_path / "stopped.pt", weights_only=True)["step"] == 8
    again = run(25, "stopped.pt")
    assert all(weight.equal(other) for weight, other in zip(whole.parameters(), again.parameters(), strict=True))


def test_a_course_writes_a_head_that_can_be_loaded_and_what_it_has_learnt(tmp_path):
    target, words = tiny_model("llama"), np.random.default_rng(3).integers(0, 26, (26, 6))
    records = [{"user": "hi", "assistant": "".join(chr(97 + letter) for letter in word)} for word in words]
    split = run.capture(target, Letters(), records, tmp_path / "states", 100)
    assert len(split.held_out) == 4
    assert sum(len(captured_text.text.tokens) for captured_text in split.training) <= 100
    reports: list[dict] = []
    plan, settings = HeadPlan("eagle3", 30), HeadSettings(steps=3, batch=40, depth=2)
    [head] = run.train_head(run.NamedTarget(target, "some/target"), split, plan, settings, tmp_path, 3, reports.append)
    theirs = load_head(tmp_path / "head", target)
    mine = dict(head.named_parameters()) | {"d2t": head.d2t}
    assert all(mine[name].equal(value) for name, value in theirs.state_dict().items())
    [line] = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert (line["step"], len(line["T=1"])) == (3, 2)
    with pytest.raises(AdviceError, match="give 12 or more"):
        run.capture(target, Letters(), records[:11], tmp_path / "few", 100)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_trained_further_from_where_it_was_with_its_own_tokens(kind, seen, tmp_path):
    target, plan = tiny_model("llama"), HeadPlan(kind, 30, heads=2, block=3, mask_token=7)
    parts = run.NamedTarget(target, "some/target"), run.Split(seen, seen)

    def train_in(plan: HeadPlan | tuple, name: str):
        return list(run.train_head(*parts, plan, HeadSettings(1, 40, depth=2), tmp_path / name, 1, lambda line: None))[
            -1
        ]

    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first, before = train_in(plan, "first"), [weight.clone() for weight in target.parameters()]
    name = f"{kind}:{tmp_path / 'first' / 'head'}"
    loaded, vocabulary = train.load_for_training(name, target)
    assert vocabulary.target_ids == first.ids.tolist()
    assert all(weight.equal(first.get_parameter(key)) for key, weight in loaded.named_parameters())
    trained = {key for key, weight in loaded.named_parameters() if weight.requires_grad}
    assert trained == {key for key, weight in first.named_parameters() if weight.requires_grad}
    second = train_in(train.load_for_training(name, target), "second")
    assert second.ids.equal(first.ids)
    changed = {key for key, weight in second.named_parameters() if not weight.equal(first.get_parameter(key))}
    assert changed
    assert changed <= trained
    assert all(weight.equal(other) for weight, other in zip(target.parameters(), before, strict=True))


@pytest.fixture(params=[True, False], ids=["bfloat16", "float32"])
def is_known(request, monkeypatch) -> bool:
    """Whether the processor multiplies in bfloat16."""
    monkeypatch.setattr(descent, "can_pack", lambda dtype: request.param)
    return request.param


def test_a_processor_without_bfloat16_computes_in_float32(is_known):
    with descent.autocast("cpu"):
        assert torch.is_autocast_enabled("cpu") == is_known
    target = deepcopy(tiny_model("llama")).to(torch.bfloat16)
    fast = written_before.in_fast_dtype(target)
    assert target.dtype == torch.bfloat16
    assert (fast is target) == is_known
    assert fast.dtype == (torch.bfloat16 if is_known else torch.float32)


def test_muon_computes_in_float32_where_there_is_no_bfloat16(is_known, tmp_path):
    model = torch.nn.Linear(9, 5)
    gradient, before = torch.randn(5, 9, generator=torch.Generator().manual_seed(0)), model.weight.detach().clone()
    model.weight.grad = gradient.clone()
    descent.Descent(model, [model.weight], 1.0, 1.0, tmp_path / "none.pt").step(1.0, lambda: 0.0)
    update = gradient.double() / gradient.double().norm()
    for _ in range(5):  # Newton and Schulz's, with the coefficients of Jordan et al.
        squares = update @ update.T
        update = 3.4445 * update + (-4.775 * squares + 2.0315 * squares @ squares) @ update
    error = (before - model.weight - update).abs().max().item()
    assert (error < 1e-5) == (not is_known)


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_that_is_larger_than_the_targets_is_cut_to_it(kind, seen, tmp_path):
    """Of the usual 8,192 tokens; it ended in a traceback once the target had written its text."""
    target, plan = tiny_model("llama"), HeadPlan(kind, 8192, heads=2, block=3, mask_token=7)
    of = target.config.vocab_size
    [head] = run.train_head(
        run.NamedTarget(target, "some/target"), run.Split(seen, seen), plan, HeadSettings(steps=1, batch=40, depth=2),
        tmp_path, 1, lambda line: None,
    )  # fmt: skip
    assert head.settings.drafted == of
    theirs = load_head(tmp_path / "head", target)
    assert theirs.settings.drafted == of
    assert theirs.ids is None


class Letters:
    """A tokenizer with a token for each letter, and a template."""

    chat_template, eos_token, eos_token_id, bos_token_id = "x", "!", 0, None

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [0 if letter == "!" else ord(letter) % 60 + 1 for letter in text]}

    def apply_chat_template(self, turns, **_: object) -> str:
        return f"U{turns[0]['content']}!A"

    def decode(self, tokens: list[int], **_: object) -> str:
        return "".join("abcdefghij"[token % 10] for token in tokens)


def test_records_become_tokens_of_which_the_targets_own_are_trained_on(tmp_path):
    tokens = Letters()
    read = captured.conversation_of(
        {"id": "self/1", "user": "hi", "assistant": "yo", "ended": True, "temperature": 0.7}, 0, tokens
    )
    assert (len(read.tokens), read.first, read.answer, read.about["temperature"]) == (8, 0, 5, 0.7)
    other_read = captured.conversation_of({"user": "hi", "assistant": "yo", "ended": False}, 4, tokens)
    assert (len(other_read.tokens), other_read.first, other_read.answer, other_read.about["id"]) == (7, 4, 5, "4")
    path = tmp_path / "text.jsonl"
    path.write_text(json.dumps({"user": "hi"}) + "\n")
    with pytest.raises(AdviceError, match=r"line 1 of .* has no user and assistant"):
        captured.records(path)


def test_a_target_writes_text_and_goes_on_where_it_was_stopped(tmp_path):
    target, path = tiny_model("llama", num_hidden_layers=1), tmp_path / "text.jsonl"
    first = next(target_text.write(target, Letters(), path, 10_000))
    counts = list(target_text.write(target, Letters(), path, first + 1))
    assert len(counts) == 1
    assert counts[0] > first
    records = captured.records(path)
    assert [record["id"] for record in records] == [f"self/{n}" for n in range(len(records))]
    assert {record["temperature"] for record in records} <= {0.0, 0.7, 1.0}
    assert max(len(record["user"]) for record in records) <= target_text.MAX_TURN_TOKENS


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_answer_that_is_written_or_trained_on_ends_with_its_turn(name):
    """Where the model's configuration names no end, and the tokenizer's is another."""
    tokenizer, closing = TEMPLATES[name].tokenizer, TEMPLATES[name].closing
    read = captured.conversation_of({"user": "Hi", "assistant": "abc"}, 0, tokenizer)
    assert tokenizer.convert_ids_to_tokens(read.tokens[-1]) == closing
    written = torch.tensor([tokenizer(f"abc{closing}a", add_special_tokens=False)["input_ids"]])
    ends = list[list[int]]()

    class Writer(LlamaForCausalLM):
        """A model that writes just that."""

        def generate(self, rows, eos_token_id, **_: object) -> torch.Tensor:
            ends.append(eos_token_id)
            return torch.cat([rows, written], 1)

    model = Writer(tiny_model("llama", vocab_size=320).config)
    [(text, _, ended)] = target_text.continue_prompts(model, tokenizer, [[5]], 9, 1.0)
    assert (text, ended) == ("abc", True)
    assert tokenizer.convert_tokens_to_ids(closing) in ends[0]


def test_the_command_trains_on_text_of_the_targets_own_and_goes_on(tmp_path, capsys):
    own_text(tmp_path)
    settings = {"kind": train_head.Kind.medusa, "target": "embedded", "out": tmp_path, "tokens": 90, "vocabulary": 50}
    train_head.train_head(**settings, self_written=True, steps=2, batch=50, every=2, depth=2)
    printed = capsys.readouterr().err
    assert "is ready: multidraft generate --target embedded --draft medusa:" in printed
    assert re.search(r"step 2 of 2: loss [\d.]+, acceptance by depth [\d.]+ [\d.]+", printed)
    assert not (tmp_path / "checkpoint.pt").exists()
    train_head.train_head(**settings, self_written=True, steps=2, batch=50, every=2, depth=2)
    assert not (tmp_path / "checkpoint.pt").exists()  # nothing was trained again
    assert capsys.readouterr().err.count("is ready") == 1
    assert json.loads((tmp_path / "head" / "config.json").read_text())["medusa_num_heads"] == 2
    with pytest.raises(AdviceError, match="has a run with other settings"):
        train_head.train_head(**settings, self_written=True, steps=3, batch=50, every=2, depth=2)
    with pytest.raises(AdviceError, match="one of the two"):
        train_head.train_head(**settings)
    head, other = f"medusa:{tmp_path / 'head'}", tmp_path / "further"
    for name, advice in (("eagle3:smollm2", "write medusa:FOLDER"), (head, ""), (f"{head}x", "no folder")):
        further = settings | {"out": other, "states": tmp_path / "states", "start": name}
        with pytest.raises(AdviceError, match=advice) if advice else nullcontext():
            train_head.train_head(**further, text=tmp_path / "text.jsonl", steps=1, batch=50, every=1)
        shutil.rmtree(other, ignore_errors=True)


def text(length: int, seed: int, answer: int = 2, temperature: float = 1.0) -> TopText:
    """A text of a target that expects a token's successor, most of the time."""
    random = np.random.default_rng(seed)
    tokens = random.integers(WORDS, size=1) + np.arange(length)
    places = np.arange(1, length)
    ids = np.stack([tokens[1:] % WORDS, (tokens[1:] + 5) % WORDS], 1)
    about = {"id": str(seed), "temperature": temperature, "answer": answer}
    return TopText(tokens % WORDS, places, ids, np.log(np.tile([[0.9, 0.05]], (len(places), 1))), about)


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
    grid = (np.arange(2_000) + 0.5) / 2_000
    drawn = np.concatenate([writing.sample(logits, [0.7], [number]) for number in grid])
    frequencies = np.bincount(drawn, minlength=7) / len(grid)
    assert np.abs(frequencies - (logits[0].double() / 0.7).softmax(0).numpy()).max() < 2 / len(grid)
    assert np.abs(frequencies - logits[0].double().softmax(0).numpy()).max() > 0.01  # at another temperature


def test_a_text_without_chance_ends_where_it_repeats_itself_and_a_model_answers_after_its_own_turn():
    prompt, none = writing.UserTurn(0, "a", "b"), np.empty(0)  # written at T = 0
    row = writing.OpenText(prompt, 0, [1, 2], 2 + writing.MAX_ANSWER_TOKENS, np.random.default_rng(0), answers=True)
    taken = [row.take(token, none, none, end=0, answer=[]) for token in [*range(10, 30)] * 3]
    assert taken.index(True) == 20 + writing.LOOP_TOKENS - 1
    row.prompt = writing.UserTurn(1, "a", "b")
    assert not row.is_looping()
    row = writing.OpenText(writing.UserTurn(1, "self", None), 0, [1, 2], 9, np.random.default_rng(0), answers=False)
    assert row.temperature == 1.0
    assert not row.take(0, none, none, end=0, answer=[7, 8])
    assert (row.tokens, row.answers, row.temperature) == ([1, 2, 0, 7, 8], True, 0.7)
    assert row.take(0, none, none, end=0, answer=[7, 8])


def test_reading_texts_together_is_reading_them_alone():
    model = tiny_model("llama", vocab_size=100)
    conversations = [
        written_before.TokenizedChat(list(range(length)), 2, 4, {"id": str(length)}) for length in (12, 7, 9)
    ]
    together = written_before.read(model, conversations)
    alone = [written_before.read(model, [conversation])[0] for conversation in conversations]
    for conversation, other in zip(together, alone, strict=True):
        assert conversation.about == other.about
        assert conversation.places[0] == 3
        assert np.allclose(conversation.logs, other.logs, atol=1e-4)
        with torch.inference_mode():
            whole = model(torch.from_numpy(conversation.tokens)[None]).logits[0].log_softmax(-1)
        for place, ids, logs in zip(conversation.places, conversation.ids, conversation.logs, strict=True):
            assert np.allclose(whole[place - 1][torch.from_numpy(ids)], logs, atol=1e-4)


def test_the_student_begins_as_rows_and_layers_of_the_target_and_reads_others_as_one():
    target, vocabulary = tiny_model("llama", vocab_size=WORDS), TokenSet([3, 5, 9], WORDS)
    draft = small_draft.new_draft(target, (1, 0), vocabulary)
    rows = target.model.embed_tokens.weight
    assert draft.lm_head.weight[:3].equal(rows[[3, 5, 9]])
    assert draft.config.target_ids == [3, 5, 9]
    assert vocabulary.to_draft(torch.tensor([9, 3, 4, 0])).tolist() == [2, 0, 3, 3]
    for ours, theirs in ((0, 1), (1, 0)):
        assert draft.model.layers[ours].mlp.up_proj.weight.equal(target.model.layers[theirs].mlp.up_proj.weight)


def test_the_overlap_is_the_sum_of_minima_by_hand():
    vocabulary = TokenSet([1, 2], 4)
    text = TopText(np.array([0, 1]), np.array([1]), np.array([[2, 3, 1]]), np.log([[0.5, 0.3, 0.2]]), {})
    logits, targets = torch.log(torch.tensor([[0.6, 0.4]])), TargetProbabilities.of([text], vocabulary)
    assert small_draft.overlap(logits, targets, 1.0).item() == pytest.approx(0.2 + 0.4, abs=1e-3)
    loss = small_draft.loss_of(logits, targets, 0.0).item()
    assert loss == pytest.approx(-0.5 * np.log(0.4) - 0.2 * np.log(0.6), abs=1e-2)
    mixed = small_draft.loss_of(logits, targets, 0.5).item()
    assert mixed == pytest.approx(loss / 2 - 0.5 * np.log(0.6), abs=1e-2)


def test_a_draft_learns_and_a_run_that_was_stopped_goes_on_to_the_same_weights(tmp_path):
    target = tiny_model("llama", vocab_size=WORDS)
    training_texts = [text(20, seed) for seed in range(12)]
    vocabulary = TokenSet(texts.frequent(training_texts, 20, WORDS), WORDS)
    settings = small_draft.TrainingSettings(
        layers=(0,), steps=30, batch=80, warmup=2, learning_rate=0.05, embedding_learning_rate=0.05
    )

    def run(steps: int, name: str) -> small_draft.LlamaForCausalLM:
        path = tmp_path / name
        return next(
            draft
            for step, _, draft in small_draft.train(target, training_texts, vocabulary, settings, path)
            if step == steps
        )

    before = small_draft.acceptance(small_draft.new_draft(target, (0,), vocabulary), training_texts, vocabulary)
    whole = run(30, "whole.pt")
    after = small_draft.acceptance(whole, training_texts, vocabulary)
    assert after["T=1"] > before["T=1"] + 0.2
    assert after["covered"] == pytest.approx(20 / WORDS, abs=0.1)
    run(small_draft.STEPS_PER_CHECKPOINT + 1, "stopped.pt")
    assert torch.load(tmp_path / "stopped.pt", weights_only=True)["step"] == small_draft.STEPS_PER_CHECKPOINT
    again = run(30, "stopped.pt")
    assert json.dumps(again.config.target_ids) == json.dumps(vocabulary.target_ids)
    assert all(weight.equal(other) for weight, other in zip(whole.parameters(), again.parameters(), strict=True))


class Counting(writing.RowReader):
    """A reader whose model expects a token's successor, and ends after the last one of the vocabulary."""

    def __init__(self):
        self.held: dict[int, int] = {}
        self.passes: list[list[int]] = []

    def tokens(self, conversations: str) -> list[int]:
        if conversations == writing.SYSTEM:
            return [1]
        return (
            [0]
            if conversations == writing.END
            else [1, 2]
            if conversations.startswith("\n")
            else [1, 2, len(conversations) % 7 + 2]
        )

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
    reader, prompts = Counting(), [writing.UserTurn(n, str(n), None if n % 2 else "x" * n) for n in range(9)]
    texts = list(writing.write_rows(reader, iter(prompts), 4, lambda count: None))
    assert sorted(text.about["number"] for text in texts) == list(range(9))
    assert all(row == sorted(row) for row in reader.passes)
    assert max(map(len, reader.passes)) == 4
    assert [len(row) for row in reader.passes].count(4) > len(reader.passes) / 2
    for text in texts:
        written = text.tokens[text.places] == (text.tokens[text.places - 1] + 1) % 100
        assert (text.ids[written, 0] == text.tokens[text.places[written]]).all()
        assert text.tokens[-1] == 0
        assert len(text.ids) == len(text.logs) == len(text.places)
        assert text.places[0] == 2  # behind the system's line and the first token


FAMILIES = {
    "llama": {},
    "granite": {"logits_scaling": 8.0},
    "cohere": {"logit_scale": 0.25},
    "gemma2": {"final_logit_softcapping": 2.0},
    "gemma3": {},
    "qwen3": {},
    "gpt2": {},
    "phi": {},
    "gpt_neox": {},
    "opt": {},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_laws_are_those_of_the_models_own_forward(family):
    """With scale, cap and bias: `lm_head` alone said -0.9 for -7.8 of a Granite."""
    attention = "eager" if family == "gemma2" else "sdpa"
    target = tiny_model(family, attention, **FAMILIES[family])
    conversation = TokenizedChat([3, 1, 4, 1, 5, 9, 2, 6], 1, 3, {"temperature": 1.0, "answer": 3, "id": "1"})
    [(_, captured_text)] = captured.read_texts(target, [conversation], LAYERS)
    with torch.inference_mode():
        expected = target(torch.tensor([conversation.tokens])).logits[0].log_softmax(-1)
    for place, ids, logs in zip(
        captured_text.text.places, captured_text.text.ids, captured_text.text.logs, strict=True
    ):
        assert np.allclose(expected[place - 1][torch.from_numpy(ids)], logs, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_begins_as_its_target_or_is_refused_by_name(family):
    """Where the target is not as Llama is, nothing is read or written before it is refused."""
    target = tiny_model(family, "eager" if family == "gemma2" else "sdpa", **FAMILIES[family])
    train.check_trainable(target, "medusa")
    train.new_head(HeadPlan("medusa", VOCABULARY.size), target, VOCABULARY, 0)
    if family in ("gpt2", "phi", "gpt_neox", "opt"):
        with pytest.raises(AdviceError, match=f"last norm, which is not found in a {family}; train a medusa head"):
            train.check_trainable(target, "eagle3")
        return
    train.check_trainable(target, "eagle3")
    head = train.new_head(HeadPlan("eagle3", SIZE), target, TokenSet(range(SIZE), SIZE), 0)
    scale = {"granite": 1 / 8, "cohere": 0.25}.get(family, 1.0)
    norm = target.model.norm.weight + family.startswith("gemma")
    assert torch.allclose(head.norm.weight, train.NORM_SCALE * scale * norm, rtol=1e-2)


TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}{{ '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def chat_tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    """Letters as tokens, and some special ones."""
    special = ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<s>"]
    vocabulary = {letter: token for token, letter in enumerate("abcdefghijklmnopqrstuvwxyz \n?!")}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, additional_special_tokens=special, eos_token="<|end|>")
    fast.chat_template = template
    return fast


TURNS = [("system", "be kind"), ("user", "hi"), ("assistant", "hello"), ("user", "a colour?"), ("assistant", "blue!")]
SHARE_GPT = {"user": "human", "assistant": "gpt", "system": "system"}
FORMS = {
    "messages": {"messages": [{"role": role, "content": text} for role, text in TURNS]},
    "parts": {"messages": [{"role": r, "content": [{"type": "text", "text": t}]} for r, t in TURNS]},
    "conversations": {"conversations": [{"from": SHARE_GPT[role], "value": text} for role, text in TURNS]},
    "trailing turn": {"messages": [{"role": role, "content": text} for role, text in [*TURNS, ("user", "more")]]},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("template", [TEMPLATE, None])
def test_every_answer_of_several_turns_is_trained_on_with_its_end(form, template, tmp_path):
    path, tokenizer = tmp_path / "text.jsonl", chat_tokenizer(template)
    path.write_text(json.dumps(FORMS[form]) + "\n")
    read = captured.conversation_of(*captured.records(path), 0, tokenizer)
    whole = tokenizer.decode(read.tokens)
    expected = "<|system|>be kind<|end|>\n<|user|>hi<|end|>\n<|assistant|>hello<|end|>\n<|user|>a colour?<|end|>\n"
    expected = f"{expected}<|assistant|>blue!<|end|>" if template else "be kindhihello<|end|>a colour?blue!<|end|>"
    assert whole == expected
    assert tokenizer.decode([read.tokens[place] for place in read.trained_places]) == "hello<|end|>blue!<|end|>"
    assert read.about["answer"] == read.trained_places[0]
    cut = captured.conversation_of({**captured.records(path)[0], "ended": False}, 0, tokenizer)
    assert tokenizer.decode(cut.tokens) == expected.removesuffix("<|end|>")


@pytest.mark.parametrize(
    "record",
    [
        {"messages": []},
        {"messages": [{"role": "user", "content": "hi"}]},
        {"messages": [{"role": "assistant", "content": None}]},
        {"conversations": [{"from": "gpt", "value": 7}]},
        {"messages": "hi"},
        {"user": "hi", "assistant": None},
        {"text": 3},
        ["hi"],
    ],
)
def test_what_is_no_conversation_is_refused_with_its_line(record, tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text(json.dumps({"text": "fine"}) + "\n" + json.dumps(record) + "\n")
    with pytest.raises(AdviceError, match="line 2 of "):
        captured.records(path)


def test_texts_whose_answers_come_too_late_are_counted_and_all_of_them_are_an_error(tmp_path):
    tokenizer, target, lines = chat_tokenizer(None), tiny_model("llama", max_position_embeddings=2048), list[str]()
    short = [{"user": "hi", "assistant": "hello you"}] * 12
    long = [{"user": "a" * 1500, "assistant": "hello you"}] * 12
    split = run.capture(target, tokenizer, [*short, *long], tmp_path / "some", 1000, lines.append)
    assert len(split.training) == 10
    tokens = sum(len(text.text.tokens) for text in split.training)
    assert lines == [
        f"10 of 24 texts, {tokens} tokens, are trained on; 2 are held out, 12 have no answer within 1024 tokens"
    ]
    with pytest.raises(AdviceError, match="of 12 texts 0 have a token to train on within their first 1024"):
        run.capture(target, tokenizer, long, tmp_path / "none", 1000)
    with pytest.raises(AdviceError, match=r"no text has 3 tokens or fewer.*give more --tokens"):
        run.capture(target, tokenizer, short, tmp_path / "few", 3)
    with pytest.raises(AdviceError, match="has states of other texts"):
        run.capture(target, tokenizer, [{"user": "b", "assistant": "other"}] * 12, tmp_path / "some", 1000)
