"""The command line from outside: what it prints, and how wrong input ends."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from commands import ends_with_advice, printed, run, written
from multidraft_research.cli.pretrained import load_pretrained
from transformers import AutoTokenizer, LlamaForCausalLM

import multidraft as md
from multidraft.verification.registry import SCHEMES
from multidraft.zoo.pair import FOLDER


def ours(pair: Path) -> list[object]:
    """The options that name the tiny pair."""
    return ["generate", "--target", pair / "target", "--draft", pair / "draft"]


def test_json_has_the_promised_names_and_nothing_else_is_on_stdout(pair, prompts):
    report = printed(*ours(pair), "--prompts", prompts, "--limit", 2, "--max-new-tokens", 12, "--compare")
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
    alone = printed(*ours(pair), "--prompt", "the", "--max-new-tokens", 4)
    assert alone["speedup"] is alone["plain_tokens_per_second"] is None
    assert "plain_text" not in alone["records"][0]


@pytest.mark.parametrize(
    ("draft", "scheme"),
    [
        ("embedded", "iid:naive"),
        ("ngram:4", "anchored:lorenz"),
        ("lookup", "top:naive"),
        ("layers:1", "iid:lorenz"),
        ("0.9*embedded+0.1*ngram", "anchored:lorenz"),
        ("embedded+ngram,lookup,layers:2", "distinct:recursive_rejection"),
    ],
)
def test_greedy_text_is_that_of_plain_decoding_whatever_drafts(prompts, draft, scheme):
    settings = ("--temperature", 0, "--max-new-tokens", 12, "--tree", "2x1", "--compare", "--limit", 1)
    report = printed("generate", "--prompts", prompts, "--draft", draft, "--scheme", scheme, *settings)
    assert report["records"][0]["text"] == report["records"][0]["plain_text"]
    assert report["settings"]["draft"] == draft


def test_drafters_of_another_target(pair, prompts):
    settings = ("--scheme", "distinct:naive", "--tree", "4x2x2x1", "--max-new-tokens", 12, "--batch", 3)
    named = ["--target", pair / "target", "--draft", f"{pair / 'draft'},ngram"]
    assert printed("generate", "--prompts", prompts, *named, *settings)["acceptance_rate"] > 0.001


def texts(pair: Path, prompts: Path, *more: object) -> list[str]:
    """What the tiny pair continues the prompts by."""
    return [record["text"] for record in printed(*ours(pair), "--prompts", prompts, *more)["records"]]


def test_penalties_truncation_and_stop_strings(pair, prompts):
    common = ("--temperature", 0, "--max-new-tokens", 24, "--draft-temperature", 1)
    free = texts(pair, prompts, *common)
    assert free != texts(pair, prompts, *common, "--repetition-penalty", 1.8, "--min-p", 0.1)
    letter = free[0][len(free[0]) // 2]
    stopped = texts(pair, prompts, *common, "--stop", letter, "--stop", "nowhere")
    for text, whole in zip(stopped, free, strict=True):
        assert whole.startswith(text)
        assert letter not in whole or letter in text[-4:]


def test_a_seed_repeats_itself_and_another_does_not(pair, prompts):
    first, again, other = (texts(pair, prompts, "--max-new-tokens", 8, "--seed", seed) for seed in (5, 5, 6))
    assert first == again != other


def test_text_for_people_is_the_decoding_of_the_tokens(pair, prompts):
    tokenizer = AutoTokenizer.from_pretrained(pair / "target")
    result = run(*ours(pair), "--prompts", prompts, "--max-new-tokens", 20, "--seed", 4, "--compare")
    assert result.exit_code == 0, result.output
    models = [LlamaForCausalLM.from_pretrained(pair / role).eval() for role in ("target", "draft")]
    for index, line in enumerate(prompts.read_text().splitlines()):
        prompt = json.loads(line)["prompt"]
        generator = torch.Generator().manual_seed(4 * 1_000_003 + index)
        tokens, _ = md.generate(*models, [tokenizer(prompt)["input_ids"]], max_new_tokens=20, generator=[generator])
        assert f"── p{index} ──\n{prompt}{tokenizer.decode(tokens[0], skip_special_tokens=True)}\n" in result.stdout
    for word in ("drafted and accepted", "corrected", "bonus", "block efficiency", "optimal acceptance rate", "cache"):
        assert word in result.stdout
    assert {"multi-draft", "plain", "times"} < set(result.stdout.split())


def test_a_batch_gives_the_same_greedy_texts(pair, prompts):
    common = ("--temperature", 0, "--max-new-tokens", 6)
    one = texts(pair, prompts, *common)
    assert one == texts(pair, prompts, *common, "--batch", 3)
    shown = run(*ours(pair), "--prompts", prompts, *common, "--batch", 3).stdout
    assert all(text in shown for text in one)


def wrong(folder: Path, pair: Path) -> dict[str, tuple[list[object], str]]:
    """Every wrong input, and a word of the advice that it must meet with."""
    named, hi, folder_of = ours(pair)[1:], ["--prompt", "the"], ["--target", pair / "target", "--draft"]
    (folder / "bad.jsonl").write_text('{"id": 1, "prompt": "the"}\n\n{"id": 2, "prompt": \n')
    (folder / "nameless.jsonl").write_text('{"id": 1, "text": "the"}\n')
    (folder / "empty.jsonl").write_text("\n")
    written(folder / "long.jsonl", "the", "storm " * 300)
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
        "embedded draft, other target": ([*hi, *folder_of, "embedded"], "leave out --target"),
        "a list without distinct": ([*hi, "--draft", "ngram,lookup"], "use distinct:recursive_rejection"),
        "distinct without a list": ([*hi, "--draft", "ngram", "--scheme", "distinct:naive"], "pass a list"),
        "target alone": ([*hi, "--target", pair / "target"], "--draft"),
        "two tokenizers": ([*hi, *folder_of, pair / "stranger"], "choose a draft"),
        "unknown scheme": ([*named, *hi, "--scheme", "iid:magic"], "schemes are"),
        "law and rule": ([*named, *hi, "--scheme", "top:lorenz"], "valid rules"),
        "tree": ([*named, *hi, "--tree", "4y2"], "does not parse"),
        "tree without drafts": ([*named, *hi, "--tree", "4x0"], "without drafts"),
        "walk": ([*named, *hi, "--walk", "moonwalk"], "commit"),
        "temperature": ([*named, *hi, "--temperature", -1], "temperature"),
        "no number": ([*named, *hi, "--temperature", "warm"], "--temperature"),
        "top_p": ([*named, *hi, "--top-p", 2], "--top-p"),
        "no new tokens": ([*named, *hi, "--max-new-tokens", 0], "--max-new-tokens"),
        "long prompt": ([*named, "--prompt", "storm " * 300], "context"),
        "long prompt in a file": ([*named, "--prompts", folder / "long.jsonl"], "'p1'"),
        "no prompts": (named, "either --prompt"),
        "prompts twice": ([*named, *hi, "--prompts", folder / "bad.jsonl"], "either --prompt"),
        "missing file": ([*named, "--prompts", folder / "none.jsonl"], "check the path"),
        "a folder as file": ([*named, "--prompts", folder], "check the path"),
        "bad line": ([*named, "--prompts", folder / "bad.jsonl"], "line 3"),
        "line without prompt": ([*named, "--prompts", folder / "nameless.jsonl"], "line 1"),
        "empty file": ([*named, "--prompts", folder / "empty.jsonl"], "no prompts"),
        "unknown option": ([*named, *hi, "--colour", "red"], "--colour"),
        "workers without a folder": ([*hi, "--workers", 2], "--jsonl FOLDER"),
        "Ray without a folder": ([*hi, "--ray", "local"], "--jsonl FOLDER"),
        "workers that compare": ([*hi, "--workers", 2, "--jsonl", "x", "--compare"], "--compare is of one process"),
        "workers that record": ([*hi, "--workers", 2, "--jsonl", "x", "--trace", "y"], "--trace is of one process"),
    }


def test_wrong_input_ends_with_one_line_that_says_what_to_do(tmp_path, pair, subtests):
    for name, (arguments, advice) in wrong(tmp_path, pair).items():
        with subtests.test(name):
            ends_with_advice(run("generate", *arguments), advice)
    ends_with_advice(run("fly"), "fly")


def test_schemes():
    listed = printed("schemes")
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


def test_the_embedded_target_takes_other_drafts_of_its_vocabulary(tmp_path):
    shutil.copytree(FOLDER / "draft", tmp_path / "copy")
    theirs, ours = load_pretrained("embedded", str(tmp_path / "copy")), load_pretrained(None, None)
    assert all(map(torch.equal, theirs.draft.parameters(), ours.draft.parameters()))
    assert all(map(torch.equal, theirs.target.parameters(), ours.target.parameters()))
