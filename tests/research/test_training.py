"""The recipe of the embedded pair: the corpus is cut cleanly, training repeats itself bit for bit, and its command."""

import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import CONTEXT, ends_with_advice, run, save_pair, synthetic
from multidraft_research.training import corpus, descent, evaluate, recipe
from multidraft_research.training.recipe import Recipe, Shape
from transformers import LlamaForCausalLM

from multidraft import AdviceError
from multidraft.zoo import load_pair

BOOK = "It was the best of times, it was the worst of times;\nthe épöque 日本語 of belief.\n"
TEXT = (BOOK * 40 + "\n\n\n" + BOOK * 40) * 3
TINY = Recipe(
    vocabulary=280,
    context=64,
    window=16,
    batch=2,
    target_steps=7,
    draft_steps=5,
    warmup=2,
    checkpoint_every=3,
    target=Shape(width=32, layers=1, inner=48, heads=2),
    draft=Shape(width=16, layers=1, inner=32, heads=2),
)


@pytest.fixture
def text_file(tmp_path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def tokenizer():
    return corpus.train_tokenizer(TEXT, 280, 64)


def test_split_cuts_at_a_line_and_loses_nothing():
    train, held_out = corpus.split(TEXT, 0.1)
    assert train + held_out == TEXT
    assert train.endswith("\n")
    assert 0.05 < len(held_out) / len(TEXT) <= 0.1


def test_split_needs_a_line_break():
    with pytest.raises(AdviceError, match="line break"):
        corpus.split("one long line", 0.1)


def test_a_missing_corpus_is_advice(tmp_path):
    ends_with_advice(run("train", "--corpus", tmp_path / "none.txt", "--out", tmp_path / "out"), "corpus")
    with pytest.raises(AdviceError, match="cannot read the corpus"):
        corpus.read_text(tmp_path / "none.txt")
    (tmp_path / "broken.gz").write_bytes(b"no gzip")
    with pytest.raises(AdviceError, match="cannot read the corpus"):
        corpus.read_text(tmp_path / "broken.gz")


@pytest.mark.parametrize("text", [BOOK, "unseen: \t§½ 😀\x00", " leading and trailing "])
def test_tokenizer_gives_every_text_back(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_encode_marks_where_books_begin(tokenizer):
    ids = corpus.encode(tokenizer, "one\n\n\n\n\ntwo\n\nthree")
    assert (ids == tokenizer.eos_token_id).sum() == 2
    assert ids[0] == tokenizer.eos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == "onetwo\n\nthree"


def test_windows_depend_on_seed_and_step_alone():
    tokens = torch.arange(1000, dtype=torch.int32)
    torch.manual_seed(1)
    first = recipe.windows(tokens, 4, TINY)
    torch.manual_seed(2)
    assert torch.equal(first, recipe.windows(tokens, 4, TINY))
    assert not torch.equal(first, recipe.windows(tokens, 5, TINY))
    assert not torch.equal(first, recipe.windows(tokens, 4, replace(TINY, seed=1)))
    assert first.shape == (2, 17)
    assert torch.equal(first[:, 1:] - first[:, :-1], torch.ones(2, 16, dtype=torch.int64))


@pytest.mark.parametrize("count", [2, 3, 8, 9, 12, 13, 40, 101])
def test_evaluation_scores_every_token_once_with_half_a_window_before_it(count):
    window, scored = 8, []
    for start, end, first in evaluate.windows(count, window):
        assert 0 <= start < end < count
        assert end - start <= window
        assert first >= (window // 2 if start else 0)
        scored += range(start + first + 1, end + 1)
    assert scored == list(range(1, count))


def test_evaluation_in_windows_of_the_whole_text_equals_one_forward_pass(tokenizer):
    text = BOOK * 2
    tokens = corpus.encode(tokenizer, text).long()
    large = replace(TINY, context=512)
    target, draft = (recipe.new_model(role, large).eval() for role in ("target", "draft"))
    found = evaluate.evaluate(target, draft, tokens, len(tokens), len(text.encode())).as_dict()
    with torch.no_grad():
        ours, theirs = (m(tokens[None, :-1]).logits[0].log_softmax(-1) for m in (target, draft))
    nats = -ours.gather(-1, tokens[1:, None]).sum().item()
    assert found["target_bits_per_byte"] == pytest.approx(nats / math.log(2) / len(text.encode()), rel=1e-5)
    overlap = torch.minimum(ours.exp(), theirs.exp()).sum(-1).mean().item()
    assert found["mean_acceptance_one_draft"] == pytest.approx(overlap, rel=1e-5)


def test_a_model_against_itself_is_always_accepted(tokenizer):
    model = recipe.new_model("target", TINY).eval()
    tokens = corpus.encode(tokenizer, BOOK * 3).long()
    found = evaluate.evaluate(model, model, tokens, TINY.window, len((BOOK * 3).encode())).as_dict()
    assert found["mean_acceptance_one_draft"] == pytest.approx(1, abs=1e-5)
    assert found["held_out_tokens"] == len(tokens) - 1


def test_resuming_equals_an_unbroken_run_bit_for_bit(text_file, tmp_path, monkeypatch):
    list(recipe.train_pair(text_file, tmp_path / "unbroken", TINY))
    whole, interrupted = descent.save_checkpoint, []

    def interrupt(path, *rest):
        whole(path, *rest)
        if path.name not in interrupted:
            interrupted.append(path.name)
            raise KeyboardInterrupt

    monkeypatch.setattr(descent, "save_checkpoint", interrupt)
    for _ in ("target", "draft"):
        with pytest.raises(KeyboardInterrupt):
            list(recipe.train_pair(text_file, tmp_path / "broken", TINY))
    assert list(recipe.train_pair(text_file, tmp_path / "broken", TINY)) == ["target", "draft"]
    for role in ("target", "draft"):
        file = Path(role) / "model.safetensors"
        assert (tmp_path / "broken" / file).read_bytes() == (tmp_path / "unbroken" / file).read_bytes()


def test_checkpoints_of_another_recipe_or_text_are_not_continued(text_file, tmp_path):
    recipe.prepare(text_file, TINY, tmp_path / "checkpoints")
    recipe.prepare(text_file, replace(TINY, checkpoint_every=1), tmp_path / "checkpoints")
    with pytest.raises(AdviceError, match="seed 0 is now 1"):
        recipe.prepare(text_file, replace(TINY, seed=1), tmp_path / "checkpoints")
    text_file.write_text(TEXT + BOOK, encoding="utf-8")
    with pytest.raises(AdviceError, match="corpus_sha256"):
        recipe.prepare(text_file, TINY, tmp_path / "checkpoints")


def test_a_text_shorter_than_a_window_is_advice(tmp_path):
    (tmp_path / "short.txt").write_text("a\nb\nc\n" * 3)
    with pytest.raises(AdviceError, match="smaller windows"):
        recipe.prepare(tmp_path / "short.txt", replace(TINY, held_out=0.3), tmp_path / "checkpoints")


QUICK = ["--target-steps", 6, "--draft-steps", 5, "--vocabulary", 300, "--window", 32, "--batch", 2]
QUICK += ["--target-size", "32x1", "--draft-size", "16x1", "--checkpoint-every", 2]


def test_train_reports_resumes_and_refuses_other_settings(tmp_path):
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text(synthetic(50_000))
    first = run("train", "--corpus", text, "--out", out, *QUICK)
    assert first.exit_code == 0, first.output
    assert "bits per byte" in first.stdout
    assert all(f" {step}/6 " in first.stderr for step in range(7))  # also between checkpoints
    report = json.loads((out / "report.json").read_text())
    assert 0 < report["mean_acceptance_one_draft"] <= 1
    assert report["target_tokens_seen"] == 6 * 2 * 32
    assert report["target_bits_per_byte"] > 0
    assert report["hardware"]["cpu"]
    again = run("train", "--corpus", text, "--out", out, *QUICK, "--json")
    assert json.loads(again.stdout)["target_bits_per_byte"] == report["target_bits_per_byte"]
    ends_with_advice(run("train", "--corpus", text, "--out", out, *QUICK, "--seed", 1), "another --out")
    pair = load_pair(out)
    assert pair.target.config.hidden_size == 32
    written = json.loads((out / "target" / "tokenizer_config.json").read_text())["tokenizer_class"]
    assert written == "PreTrainedTokenizerFast"  # the name that transformers 4.57 knows too
    models = ["--target", out / "target", "--draft", out / "draft"]
    assert run("generate", *models, "--prompt", "the", "--max-new-tokens", 4, "--json").exit_code == 0


def test_a_draft_of_another_size_is_trained_for_a_target_that_there_is(tmp_path):
    pair = save_pair(tmp_path / "pair")
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text(synthetic(50_000))
    asked = ["train", "--target", pair / "target", "--corpus", text, "--out", out, *QUICK[2:4], *QUICK[6:10]]
    first = run(*asked, "--draft-size", "8x2", "--json")
    assert first.exit_code == 0, first.output
    report = json.loads(first.stdout)
    assert report["recipe"]["context"] == CONTEXT
    assert "target_parameters" not in report
    assert not (out / "target").exists()
    draft = LlamaForCausalLM.from_pretrained(out / "draft")
    vocabulary = LlamaForCausalLM.from_pretrained(pair / "target").config.vocab_size
    assert (draft.config.hidden_size, draft.config.num_hidden_layers, draft.config.vocab_size) == (8, 2, vocabulary)
    again = json.loads(run(*asked, "--draft-size", "8x2", "--json").stdout)
    assert again["draft_bits_per_byte"] == report["draft_bits_per_byte"]
    ends_with_advice(run(*asked, "--draft-size", "6x1"), "another --out")
    told = ["--target", pair / "target", "--draft", out / "draft", "--prompt", "the", "--max-new-tokens", 4, "--json"]
    assert run("generate", *told).exit_code == 0


def heed_control_c() -> None:
    """A shell starts background jobs with Ctrl-C ignored, and their children inherit it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
def test_control_c_while_training_says_how_to_go_on(tmp_path):
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text(synthetic(50_000))
    options = ["--corpus", text, "--out", out, *QUICK, "--target-steps", 1_000_000]
    command = [sys.executable, "-c", "from multidraft.cli.main import main; main()", "train", *map(str, options)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed_control_c)
    limit = time.monotonic() + 120
    while not (out / "checkpoints" / "target.pt").exists() and time.monotonic() < limit:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert error.splitlines()[-1].startswith("multidraft: stopped; run the same command again")
    assert "Traceback" not in error
    assert torch.load(out / "checkpoints" / "target.pt", weights_only=True)["step"] >= 2
