"""The recipe of the embedded pair: the corpus is cut cleanly, and training repeats itself bit for bit.

Distillation: the draft learns what the target expects, a resumed run is an unbroken one, and the gain is honest.
"""

import json
import math
import signal
import subprocess
import sys
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import CONTEXT, ends_with_advice, printed, run, save_pair, synthetic
from multidraft_research.captures.capturing import Manner
from multidraft_research.captures.folder import FORMAT, MANIFEST, Capture
from multidraft_research.captures.work import Capturing, Passage
from multidraft_research.cli.distill import check_same
from multidraft_research.cli.executors import run as run_jobs
from multidraft_research.cli.executors import serial
from multidraft_research.studies.running.cells import ratio, sums
from multidraft_research.training import corpus, evaluate, recipe
from multidraft_research.training.distilling import DistillingSettings, distil, gains, loss_of
from multidraft_research.training.recipe import Recipe, Shape
from tiny import VOCABULARY, tiny_model
from transformers import LlamaForCausalLM, PreTrainedModel

from multidraft import AdviceError
from multidraft.io.journal import Journal
from multidraft.models.huggingface.loading import load_model
from multidraft.zoo import Pair, load_pair

BOOK = "It was the best of times, it was the worst of times;\nthe épöque 日本語 of belief.\n"
TEXT = (BOOK * 40 + "\n\n\n" + BOOK * 40) * 3
TINY = Recipe(
    vocabulary=280,
    context=64,
    window=16,
    batch=2,
    target_steps=5,
    draft_steps=4,
    warmup=2,
    checkpoint_every=3,
    target=Shape(width=32, layers=1, inner=48, heads=2),
    draft=Shape(width=16, layers=1, inner=32, heads=2),
)
QUICK = ["--target-steps", 6, "--draft-steps", 5, "--vocabulary", 300, "--window", 32, "--batch", 2]
QUICK += ["--target-size", "32x1", "--draft-size", "16x1", "--checkpoint-every", 2]
SETTINGS = DistillingSettings(steps=4, batch=2, learning_rate=0.02, held_out=0.4, checkpoint_every=2)


@pytest.fixture
def text_file(tmp_path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def tokenizer():
    return corpus.train_tokenizer(TEXT, 280, 64)


def test_a_corpus_that_cannot_be_used_is_advice(tmp_path):
    ends_with_advice(run("train", "--corpus", tmp_path / "none.txt", "--out", tmp_path / "out"), "corpus")
    for name, content, advice in (
        ("broken.gz", "no gzip", "cannot read the corpus"),
        ("short.txt", "a\nb\nc\n" * 3, "smaller windows"),
        ("one.txt", "one long line", "line break"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(AdviceError, match=advice):
            recipe.prepare(tmp_path / name, replace(TINY, held_out=0.3), tmp_path / "checkpoints")


def test_the_corpus_is_cut_at_a_line_and_the_tokenizer_gives_it_back_and_marks_where_books_begin(tokenizer):
    train, held_out = corpus.split(TEXT, 0.1)
    assert train + held_out == TEXT
    assert train.endswith("\n")
    for text in (BOOK, "unseen: \t§½ 😀\x00", " leading and trailing "):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    ids = corpus.encode(tokenizer, "one\n\n\n\n\ntwo\n\nthree")
    assert (ids == tokenizer.eos_token_id).sum() == 2
    assert ids[0] == tokenizer.eos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == "onetwo\n\nthree"


def test_evaluation_in_windows_of_the_whole_text_equals_one_forward_pass(tokenizer):
    text = BOOK * 2
    tokens = corpus.encode(tokenizer, text).long()
    target, draft = (recipe.new_model(role, replace(TINY, context=512)).eval() for role in ("target", "draft"))
    evaluated = evaluate.evaluate(target, draft, tokens, len(tokens), len(text.encode())).as_dict()
    with torch.no_grad():
        ours, theirs = (m(tokens[None, :-1]).logits[0].log_softmax(-1) for m in (target, draft))
    nats = -ours.gather(-1, tokens[1:, None]).sum().item()
    assert evaluated["target_bits_per_byte"] == pytest.approx(nats / math.log(2) / len(text.encode()), rel=1e-5)
    overlap = torch.minimum(ours.exp(), theirs.exp()).sum(-1).mean().item()
    assert evaluated["mean_acceptance_one_draft"] == pytest.approx(overlap, rel=1e-5)
    for window in (len(tokens), 8, 9):  # every token once, with half a window before it
        assert evaluate.evaluate(target, draft, tokens, window, 1).tokens == len(tokens) - 1


def test_resuming_equals_an_unbroken_run_bit_for_bit(text_file, tmp_path, monkeypatch):
    list(recipe.train_pair(text_file, tmp_path / "unbroken", TINY))
    move, interrupted = Path.replace, []

    def interrupt(new_path: Path, path: Path) -> None:  # after the first checkpoint of each
        move(new_path, path)
        if path.name in ("target.pt", "draft.pt") and path.name not in interrupted:
            interrupted.append(path.name)
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    for _ in ("target", "draft"):
        with pytest.raises(KeyboardInterrupt):
            list(recipe.train_pair(text_file, tmp_path / "broken", TINY))
    assert list(recipe.train_pair(text_file, tmp_path / "broken", TINY)) == ["target", "draft"]
    for role in ("target", "draft"):
        file = Path(role) / "model.safetensors"
        assert (tmp_path / "broken" / file).read_bytes() == (tmp_path / "unbroken" / file).read_bytes()
    with pytest.raises(AdviceError, match="seed 0 is now 1"):
        recipe.prepare(text_file, replace(TINY, seed=1), tmp_path / "broken" / "checkpoints")
    text_file.write_text(TEXT + BOOK, encoding="utf-8")
    with pytest.raises(AdviceError, match="corpus_sha256"):
        recipe.prepare(text_file, TINY, tmp_path / "broken" / "checkpoints")


def generates(target: Path, draft: Path) -> bool:
    models = ["--target", target, "--draft", draft]
    return run("generate", *models, "--prompt", "the", "--max-new-tokens", 4, "--json").exit_code == 0


def test_train_reports_resumes_and_refuses_other_settings(tmp_path):
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text(synthetic(30_000))
    first = run("train", "--corpus", text, "--out", out, *QUICK)
    assert "bits per byte" in first.stdout
    assert all(f" {step}/6 " in first.stderr for step in range(7))  # also between checkpoints
    report = json.loads((out / "report.json").read_text())
    assert 0 < report["mean_acceptance_one_draft"] <= 1
    assert report["target_tokens_seen"] == 6 * 2 * 32
    again = printed("train", "--corpus", text, "--out", out, *QUICK)
    assert again["target_bits_per_byte"] == report["target_bits_per_byte"]
    ends_with_advice(run("train", "--corpus", text, "--out", out, *QUICK, "--seed", 1), "another --out")
    written = json.loads((out / "target" / "tokenizer_config.json").read_text())["tokenizer_class"]
    assert written == "PreTrainedTokenizerFast"  # the name that transformers 4.57 knows too
    assert generates(out / "target", out / "draft")


def test_a_draft_of_another_size_is_trained_for_a_target_that_there_is(tmp_path):
    pair, text, out = save_pair(tmp_path / "pair"), tmp_path / "text.txt", tmp_path / "out"
    text.write_text(synthetic(30_000))
    words = ["train", "--target", pair / "target", "--corpus", text, "--out", out, *QUICK[2:4], *QUICK[6:10]]
    report = printed(*words, "--draft-size", "8x2")
    assert report["recipe"]["context"] == CONTEXT
    assert "target_parameters" not in report
    assert not (out / "target").exists()
    draft = LlamaForCausalLM.from_pretrained(out / "draft")
    vocabulary = LlamaForCausalLM.from_pretrained(pair / "target").config.vocab_size
    assert (draft.config.hidden_size, draft.config.num_hidden_layers, draft.config.vocab_size) == (8, 2, vocabulary)
    assert printed(*words, "--draft-size", "8x2")["draft_bits_per_byte"] == report["draft_bits_per_byte"]
    ends_with_advice(run(*words, "--draft-size", "6x1"), "another --out")
    assert generates(pair / "target", out / "draft")


@pytest.mark.slow
def test_control_c_while_training_says_how_to_go_on(tmp_path):
    """A shell starts background jobs with Ctrl-C ignored, and their children inherit it."""
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text(synthetic(50_000))
    options = ["--corpus", text, "--out", out, *QUICK, "--target-steps", 1_000_000]
    command = [sys.executable, "-c", "from multidraft.cli.main import main; main()", "train", *map(str, options)]
    heed = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    limit = time.monotonic() + 120
    while not (out / "checkpoints" / "target.pt").exists() and time.monotonic() < limit:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert error.splitlines()[-1].startswith("multidraft: stopped; run the same command again")
    assert "Traceback" not in error
    assert torch.load(out / "checkpoints" / "target.pt", weights_only=True)["step"] >= 2


def new_draft() -> PreTrainedModel:
    return deepcopy(tiny_model("mistral"))


@pytest.fixture(scope="module")
def capture(tmp_path_factory) -> Capture:
    """Five prompts that a tiny target has continued."""
    folder = tmp_path_factory.mktemp("capture")
    journal = Journal(folder / MANIFEST, {"capture": FORMAT, "vocabulary": VOCABULARY, "prompts": 5})
    passages = [Passage(f"p{i}", "task", [i + 1, i + 2]) for i in range(5)]
    target = deepcopy(tiny_model("llama"))
    with torch.no_grad():
        target.lm_head.weight.mul_(8)  # expects something, so that there is something to learn
    pair = Pair(target, tiny_model("mistral"), None)  # type: ignore[arg-type]  # no text here
    run_jobs(Capturing(lambda: pair, passages, Manner(new_tokens=12), folder), 5, journal, serial, "capturing")
    return Capture.open(folder)


def test_the_draft_comes_nearer_to_the_target_in_cross_entropy(capture, tmp_path) -> None:
    distilled = distil(new_draft(), capture, replace(SETTINGS, steps=20), tmp_path / "checkpoint.pt")
    with torch.inference_mode():  # over the prompts that are trained on
        after, before = (
            sum(loss_of(model, capture.shard(index)) for index in range(3)) for model in (distilled, new_draft())
        )
    assert after < before - 0.5
    shard = capture.shard(0)
    logits = new_draft()(torch.cat([shard.prompt, shard.tokens])[None]).logits[0, len(shard.prompt) - 1 : -1]
    direct = -(shard.recording.target.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
    assert loss_of(new_draft(), shard).item() == pytest.approx(direct.item(), abs=1e-5)


def test_a_resumed_run_is_an_unbroken_one(capture, tmp_path, monkeypatch) -> None:
    whole, move = distil(new_draft(), capture, SETTINGS, tmp_path / "whole.pt"), Path.replace

    def stopped(new_path: Path, path: Path) -> None:
        move(new_path, path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", stopped)
        with pytest.raises(KeyboardInterrupt):
            distil(new_draft(), capture, SETTINGS, tmp_path / "torn.pt")
    check_same(tmp_path / "settings.json", {"steps": 1})
    with pytest.raises(AdviceError, match="steps 1 is now 2"):
        check_same(tmp_path / "settings.json", {"steps": 2})
    resumed = distil(new_draft(), capture, SETTINGS, tmp_path / "torn.pt")
    assert all(weight.equal(other) for weight, other in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_the_gain_is_measured_on_prompts_that_were_held_out(capture, tmp_path) -> None:
    def acceptance(model: PreTrainedModel) -> list[float]:
        records = [{"id": name, "cells": cells} for name, cells in gains(model, capture, SETTINGS)]
        ratios = {place: ratio(sums_of_place) for place, sums_of_place in sums(records).items()}
        return [ratios["acceptance", row, 1.0].value for row in ("before", "after", "gain")]

    before, _, gain = acceptance(new_draft())
    assert gain == pytest.approx(0, abs=1e-6)
    with pytest.raises(AdviceError, match="none is left to train on"):
        SETTINGS.parts(1)
    held_out = [capture.shard(index).recording for index in (3, 4)]
    rates = [torch.minimum(r.target.double().softmax(-1), r.draft.double().softmax(-1)).sum(-1) for r in held_out]
    assert before == pytest.approx(float(torch.cat(rates).mean()), abs=1e-6)
    before, after, gain = acceptance(distil(new_draft(), capture, SETTINGS, tmp_path / "checkpoint.pt"))
    assert gain == pytest.approx(after - before, abs=1e-12)
    assert gain != 0


@pytest.mark.slow
def test_the_command_writes_a_draft_that_can_be_used(tmp_path) -> None:
    assert run("capture", "--out", tmp_path / "capture", "--max-new-tokens", 8).exit_code == 0
    command = ["distill", "--capture", tmp_path / "capture", "--out", tmp_path / "run", "--steps", 2, "--batch", 1]
    assert "held out" in run(*command).stdout
    distilled, old = load_model(str(tmp_path / "run" / "draft")), load_pair().draft
    ids = torch.tensor([[1, 2, 3]])
    assert not torch.equal(distilled(ids).logits, old(ids).logits)
    assert (distilled.dtype, distilled.num_parameters()) == (old.dtype, old.num_parameters())
