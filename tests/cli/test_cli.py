"""The command line from outside: what it prints, and how wrong input ends."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from multidraft_research.training import corpus
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

import multidraft as md
from multidraft.cli.main import app
from multidraft.cli.models import load_pretrained
from multidraft.generation.text import IncrementalDetokenizer
from multidraft.verification.registry import SCHEMES
from multidraft.zoo import load_pair
from multidraft.zoo.pair import FOLDER

WORDS = ["the", "old", "house", "stood", "alone", "naïve", "日本語", "😀", "and", "a", "storm", "came", "çà"]
CONTEXT = 96


def synthetic(size: int) -> str:
    """Text of words in a fixed pseudo-random order."""
    order = torch.randint(len(WORDS), (size // 5,), generator=torch.Generator().manual_seed(3)).tolist()
    return "".join(WORDS[i] + (".\n" if n % 9 == 8 else " ") for n, i in enumerate(order))


def save_model(folder: Path, seed: int, tokenizer) -> None:
    """A tiny random Llama with a tokenizer beside it."""
    torch.manual_seed(seed)
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2)
    config = LlamaConfig(
        vocab_size=320,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=None,
        initializer_range=0.3,
        **sizes,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def pair(tmp_path_factory) -> Path:
    """A folder with `target`, `draft`, and `stranger`, whose tokenizer has as many pieces, but others."""
    folder = tmp_path_factory.mktemp("pair")
    tokenizer = corpus.train_tokenizer(synthetic(20_000), 320, CONTEXT)
    for seed, role in enumerate(("target", "draft")):
        save_model(folder / role, seed, tokenizer)
    save_model(folder / "stranger", 2, corpus.train_tokenizer("quick brown foxes jump " * 300, 320, CONTEXT))
    return folder


@pytest.fixture
def prompts(tmp_path) -> Path:
    """Three prompts in a file."""
    texts = ["the old house", "a storm came", "日本語 and 😀"]
    file = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"id": f"p{i}", "task": "story", "prompt": text}) for i, text in enumerate(texts)]
    file.write_text("\n".join(lines) + "\n")
    return file


def run(*arguments: object):
    """The result of `multidraft ...`."""
    return CliRunner().invoke(app, [str(a) for a in arguments])


def generate(pair: Path, *arguments: object):
    """The result of `multidraft generate` with the tiny pair."""
    return run("generate", "--target", pair / "target", "--draft", pair / "draft", *arguments)


def test_json_has_the_promised_names_and_nothing_else_is_on_stdout(pair, prompts):
    result = generate(pair, "--prompts", prompts, "--limit", 2, "--max-new-tokens", 12, "--compare", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    for name in ("tokens_per_second", "plain_tokens_per_second", "speedup"):
        assert report[name] > 0
    assert report["tokens"] == 24
    assert 1 <= report["block_efficiency"] <= 5
    assert 0 < report["acceptance_rate"] <= 1 + 1e-6
    assert 0 < report["optimal_acceptance_rate"] <= 1 + 1e-6
    assert {"draft", "target", "rule", "cache", "rest"} < set(report["seconds"])
    assert report["settings"] | {"scheme": "anchored:lorenz", "walk": "deferred", "prompts": 2} == report["settings"]
    assert report["versions"]["torch"] == torch.__version__
    assert "cpu" in report["hardware"]
    assert [record["id"] for record in report["records"]] == ["p0", "p1"]
    assert not report["interrupted"]


def test_without_compare_nothing_is_said_of_plain_decoding(pair):
    report = json.loads(generate(pair, "--prompt", "the", "--max-new-tokens", 4, "--json").stdout)
    assert report["speedup"] is report["plain_tokens_per_second"] is None
    assert "plain_text" not in report["records"][0]


def test_greedy_text_equals_plain_greedy_text(pair, prompts):
    result = generate(pair, "--prompts", prompts, "--temperature", 0, "--max-new-tokens", 16, "--compare", "--json")
    for record in json.loads(result.stdout)["records"]:
        assert record["text"] == record["plain_text"]


@pytest.mark.parametrize(
    ("draft", "scheme"),
    [
        ("ngram:4", "anchored:lorenz"),
        ("lookup", "top:naive"),
        ("layers:1", "iid:lorenz"),
        ("0.9*embedded+0.1*ngram", "anchored:lorenz"),
        ("embedded+ngram,lookup,layers:2", "distinct:recursive_rejection"),
    ],
)
def test_drafters_of_the_embedded_target(prompts, draft, scheme):
    settings = ("--temperature", 0, "--max-new-tokens", 12, "--tree", "2x1", "--compare", "--json", "--limit", 1)
    result = run("generate", "--prompts", prompts, "--draft", draft, "--scheme", scheme, *settings)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["records"][0]["text"] == report["records"][0]["plain_text"]
    assert report["settings"]["draft"] == draft


def test_drafters_of_another_target(pair, prompts):
    draft = f"{pair / 'draft'},ngram"
    settings = ("--scheme", "distinct:naive", "--tree", "4x2x2x1", "--max-new-tokens", 12, "--json", "--batch", 3)
    result = run("generate", "--prompts", prompts, "--target", pair / "target", "--draft", draft, *settings)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["acceptance_rate"] > 0.001


def test_penalties_truncation_and_stop_strings(pair, prompts):
    def texts(*arguments: object) -> list[str]:
        common = ("--prompts", prompts, "--temperature", 0, "--max-new-tokens", 24, "--json", "--draft-temperature", 1)
        return [record["text"] for record in json.loads(generate(pair, *common, *arguments).stdout)["records"]]

    free, penalised = texts(), texts("--repetition-penalty", 1.8, "--min-p", 0.1)
    assert free != penalised
    letter = free[0][len(free[0]) // 2]
    for text, whole in zip(texts("--stop", letter, "--stop", "nowhere"), free, strict=True):
        assert whole.startswith(text)
        assert letter not in whole or letter in text[-4:]
    for option in ("--min-p", "--repetition-penalty", "--draft-temperature"):
        result = run("generate", "--target", "nowhere", "--draft", "none", "--prompt", "the", option, -3)
        assert result.exit_code != 0
        assert "-3" in f"{result.output} {result.exception}"


def test_a_seed_repeats_itself_and_another_does_not(pair, prompts):
    def texts(*arguments: object) -> list[str]:
        result = generate(pair, "--prompts", prompts, "--max-new-tokens", 8, "--json", *arguments)
        return [record["text"] for record in json.loads(result.stdout)["records"]]

    assert texts("--seed", 5) == texts("--seed", 5)
    assert texts("--seed", 5) != texts("--seed", 6)


def test_text_for_people_is_the_decoding_of_the_tokens(pair, prompts):
    tokenizer = AutoTokenizer.from_pretrained(pair / "target")
    result = generate(pair, "--prompts", prompts, "--max-new-tokens", 20, "--seed", 4)
    assert result.exit_code == 0, result.output
    models = [LlamaForCausalLM.from_pretrained(pair / role).eval() for role in ("target", "draft")]
    for index, line in enumerate(prompts.read_text().splitlines()):
        prompt = json.loads(line)["prompt"]
        generator = torch.Generator().manual_seed(4 * 1_000_003 + index)
        tokens, _ = md.generate(*models, [tokenizer(prompt)["input_ids"]], max_new_tokens=20, generator=[generator])
        assert f"── p{index} ──\n{prompt}{tokenizer.decode(tokens[0], skip_special_tokens=True)}\n" in result.stdout
    for word in ("drafted and accepted", "corrected", "bonus", "block efficiency", "optimal acceptance rate", "cache"):
        assert word in result.stdout


def test_a_batch_gives_the_same_greedy_texts(pair, prompts):
    common = ("--prompts", prompts, "--temperature", 0, "--max-new-tokens", 6)
    one, three = (json.loads(generate(pair, *common, "--batch", n, "--json").stdout)["records"] for n in (1, 3))
    assert one == three
    shown = generate(pair, *common, "--batch", 3).stdout
    assert all(record["text"] in shown for record in one)


def test_compare_prints_both_sides_and_the_ratio(pair):
    shown = generate(pair, "--prompt", "the old", "--max-new-tokens", 8, "--compare").stdout
    assert "plain" in shown
    assert "ratio" in shown


@pytest.mark.parametrize("text", ["日本語 😀 çà naïve\n\tthe", "plain words", "😀😀😀", ""])
def test_pieces_hold_back_incomplete_characters(pair, text):
    tokenizer = AutoTokenizer.from_pretrained(pair / "target")
    reader = IncrementalDetokenizer(tokenizer, tokenizer("the house")["input_ids"])
    pieces = [reader.add(token) for token in tokenizer(text)["input_ids"]]
    assert "".join(pieces) == text
    assert reader.close() == ""


def test_pieces_of_any_bytes_add_up_to_the_whole_decoding(pair):
    tokenizer = AutoTokenizer.from_pretrained(pair / "target")
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        tokens = torch.randint(1, 320, (40,), generator=generator).tolist()
        reader = IncrementalDetokenizer(tokenizer, tokenizer("the")["input_ids"])
        assert "".join(reader.add(token) for token in tokens) + reader.close() == tokenizer.decode(tokens)


def wrong(folder: Path, pair: Path) -> dict[str, tuple[list[object], str]]:
    """Every wrong input, and a word of the advice that it must meet with."""
    ours, hi = ["--target", pair / "target", "--draft", pair / "draft"], ["--prompt", "the"]
    (folder / "bad.jsonl").write_text('{"id": 1, "prompt": "the"}\n\n{"id": 2, "prompt": \n')
    (folder / "nameless.jsonl").write_text('{"id": 1, "text": "the"}\n')
    (folder / "empty.jsonl").write_text("\n")
    (folder / "long.jsonl").write_text(
        json.dumps({"id": "ok", "prompt": "the"}) + "\n" + json.dumps({"id": "endless", "prompt": "storm " * 300})
    )
    (folder / "hollow").mkdir()
    return {
        "missing folder": ([*hi, "--target", folder / "none", "--draft", pair / "draft"], "no folder"),
        "folder without a model": ([*hi, "--target", folder / "hollow", "--draft", pair / "draft"], "config.json"),
        "draft without a name": ([*hi, "--draft", "ngram+"], "does not parse"),
        "weights": ([*hi, "--draft", "0.5*ngram+0.6*lookup"], "summing to 1"),
        "half the weights": ([*hi, "--draft", "0.5*ngram+lookup"], "as many"),
        "layers without a number": ([*hi, "--draft", "layers"], "does not parse"),
        "too many layers": ([*hi, "--draft", "layers:3"], "use 1 to 2"),
        "no order": ([*hi, "--draft", "ngram:0"], "use at least 1"),
        "draft model alone": ([*hi, "--draft", pair / "draft"], "--draft comes without --target"),
        "embedded draft, other target": (
            [*hi, "--target", pair / "target", "--draft", "embedded"],
            "leave out --target",
        ),
        "a list without distinct": ([*hi, "--draft", "ngram,lookup"], "use distinct:recursive_rejection"),
        "distinct without a list": ([*hi, "--draft", "ngram", "--scheme", "distinct:naive"], "pass a list"),
        "target alone": ([*hi, "--target", pair / "target"], "--draft"),
        "two tokenizers": ([*hi, "--target", pair / "target", "--draft", pair / "stranger"], "choose a draft"),
        "unknown scheme": ([*ours, *hi, "--scheme", "iid:magic"], "schemes are"),
        "law and rule": ([*ours, *hi, "--scheme", "top:lorenz"], "valid rules"),
        "tree": ([*ours, *hi, "--tree", "4y2"], "does not parse"),
        "tree without drafts": ([*ours, *hi, "--tree", "4x0"], "without drafts"),
        "walk": ([*ours, *hi, "--walk", "moonwalk"], "commit"),
        "temperature": ([*ours, *hi, "--temperature", -1], "temperature"),
        "no number": ([*ours, *hi, "--temperature", "warm"], "--temperature"),
        "top_p": ([*ours, *hi, "--top-p", 2], "--top-p"),
        "no new tokens": ([*ours, *hi, "--max-new-tokens", 0], "--max-new-tokens"),
        "long prompt": ([*ours, "--prompt", "storm " * 300], "context"),
        "long prompt in a file": ([*ours, "--prompts", folder / "long.jsonl"], "'endless'"),
        "no prompts": (ours, "either --prompt"),
        "prompts twice": ([*ours, *hi, "--prompts", folder / "bad.jsonl"], "either --prompt"),
        "missing file": ([*ours, "--prompts", folder / "none.jsonl"], "check the path"),
        "a folder as file": ([*ours, "--prompts", folder], "check the path"),
        "bad line": ([*ours, "--prompts", folder / "bad.jsonl"], "line 3"),
        "line without prompt": ([*ours, "--prompts", folder / "nameless.jsonl"], "line 1"),
        "empty file": ([*ours, "--prompts", folder / "empty.jsonl"], "no prompts"),
        "unknown option": ([*ours, *hi, "--colour", "red"], "--colour"),
    }


def ends_with_advice(result, advice: str) -> None:
    """Exit code 2, one line on stderr with the advice, nothing on stdout."""
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("multidraft: ")
    assert advice in lines[0]


def test_wrong_input_ends_with_one_line_that_says_what_to_do(tmp_path, pair, subtests):
    for name, (arguments, advice) in wrong(tmp_path, pair).items():
        with subtests.test(name):
            ends_with_advice(run("generate", *arguments), advice)
            ends_with_advice(run("generate", *arguments, "--json"), advice)


def test_unknown_command_and_missing_corpus(tmp_path):
    ends_with_advice(run("fly"), "fly")
    ends_with_advice(run("train", "--corpus", tmp_path / "none.txt", "--out", tmp_path / "out"), "corpus")
    (tmp_path / "text.txt").write_text("once\n")
    ends_with_advice(
        run("train", "--corpus", tmp_path / "text.txt", "--out", tmp_path, "--target-size", "wide"), "64x2"
    )


def test_control_c_keeps_what_is_complete(pair, prompts, monkeypatch):
    plainly, calls = md.generate, []

    def interrupted(*arguments, **settings):
        calls.append(1)
        if len(calls) == 3:  # the first is the warm-up
            raise KeyboardInterrupt
        return plainly(*arguments, **settings)

    monkeypatch.setattr(md, "generate", interrupted)
    result = generate(pair, "--prompts", prompts, "--max-new-tokens", 8, "--json")
    assert result.exit_code == 130
    report = json.loads(result.stdout)
    assert report["interrupted"]
    assert [record["id"] for record in report["records"]] == ["p0"]
    assert result.stderr.splitlines()[-1] == "multidraft: stopped after 1 of 3 prompts"


def test_schemes():
    listed = json.loads(run("schemes", "--json").stdout)
    assert [entry["name"] for entry in listed] == list(SCHEMES)
    assert all(f"{entry['law']}:{entry['rule']}" == entry["name"] for entry in listed)
    assert {entry["name"] for entry in listed if not entry["exact"]} == {"iid:global_resolution"}
    shown = run("schemes").stdout
    assert all(entry["name"] in shown for entry in listed if not entry["small"])
    assert "LAW:max_flow" in shown
    assert "iid:global_resolution" in shown


def test_the_table_of_schemes_is_made_from_the_list():
    """`multidraft schemes --markdown` prints what belongs between the marks."""
    text = (Path(__file__).parents[2] / "docs" / "schemes.md").read_text()
    table = text.partition("<!-- schemes -->\n")[2].partition("<!-- /schemes -->")[0]
    assert table == run("schemes", "--markdown").stdout


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
    assert generate(out, "--prompt", "the", "--max-new-tokens", 4, "--json").exit_code == 0


def test_a_draft_of_another_size_is_trained_for_a_target_that_there_is(pair, tmp_path):
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


def test_the_embedded_target_takes_other_drafts_of_its_vocabulary(tmp_path):
    shutil.copytree(FOLDER / "draft", tmp_path / "copy")
    theirs, ours = load_pretrained("embedded", str(tmp_path / "copy")), load_pretrained(None, None)
    assert all(map(torch.equal, theirs.draft.parameters(), ours.draft.parameters()))
    assert all(map(torch.equal, theirs.target.parameters(), ours.target.parameters()))


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
