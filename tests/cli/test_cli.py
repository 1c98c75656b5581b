"""`multidraft generate` and `schemes` from outside: what they print, wrong input, what stands beside drafting."""

import json
import logging
import os
import random
import re
import shutil
import subprocess
import sys
import time
from functools import partial
from importlib.metadata import EntryPoint
from itertools import accumulate, count
from pathlib import Path

import psutil
import pytest
import torch
import typer
from commands import ends_with_advice, printed, run, written
from marks import slow_but
from multidraft_research.cli.pretrained import load_pretrained
from tiny import NO_IDS, ROTARY, VOCABULARY, tiny_model
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import multidraft as md
from multidraft.autotune import plans
from multidraft.autotune.plans import Profile
from multidraft.cli import terminal
from multidraft.cli.main import COMMANDS, load_command
from multidraft.cli.pair import Models
from multidraft.cli.prompts import Prompt, read_prompts
from multidraft.cli.run_report import ASSISTED, LOOKUP, RunReport, Runs, baselines, hint, with_whole_vocabulary
from multidraft.decoding.metrics import TIMED_PARTS, Info
from multidraft.errors import say_once
from multidraft.models.ensemble import LookupThenModel
from multidraft.models.ngram import Lookup
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.verification.registry import SCHEMES
from multidraft.zoo import FOLDER

pytestmark = pytest.mark.usefixtures("unchecked")


def ours(pair: Path) -> list[object]:
    """The options that name the tiny pair."""
    return ["generate", "--target", pair / "target", "--draft", pair / "draft"]


def test_texts_follow_a_json_schema(tmp_path):
    """With drafts and without; a wrong schema is told before a model is loaded."""
    file, options = tmp_path / "schema.json", ("--target", "embedded", "--draft", "embedded", "--tree", "2x1")
    file.write_text('{"type": "array", "items": {"enum": ["yes", 7]}, "minItems": 2, "maxItems": 2}')
    call = ("generate", "--prompt", "Once", *options, "--json-schema", file, "--compare", "--seed", 1)
    report = printed(*call, "--max-new-tokens", 99)
    (record,) = report["records"]
    assert set(json.loads(record["text"])) <= {"yes", 7}
    for content, advice in (('{"type": "banana"}', "banana"), ("[", "is not JSON"), ("[]", "use an object")):
        file.write_text(content)
        ends_with_advice(run("generate", "--prompt", "Once", "--target", "none", "--json-schema", file), advice)


def test_json_has_the_promised_names_and_nothing_else_is_on_stdout(pair, prompts):
    run = (
        "--prompts",
        prompts,
        "--limit",
        2,
        "--max-new-tokens",
        12,
        "--tree",
        "2x1",
        "--compare",
    )  # `auto` may draft nothing
    report = printed(*ours(pair), *run)
    assert (report["tokens"], report["interrupted"]) == (24, False)
    assert 1 <= report["block_efficiency"] <= 5
    for name in ("acceptance_rate", "optimal_acceptance_rate"):
        assert 0 < report[name] <= 1 + 1e-6
    assert {"draft", "target", "rule", "cache", "rest"} < set(report["seconds"])
    assert report["settings"] | {"scheme": "anchored:lorenz", "walk": "deferred", "prompts": 2} == report["settings"]
    assert report["versions"]["torch"] == torch.__version__
    assert "cpu" in report["hardware"]
    assert [record["id"] for record in report["records"]] == ["p0", "p1"]
    assert report["plain_tokens_per_second"] > 0
    names = [f"{side}_{what}" for side in ("assisted", "lookup") for what in ("tokens_per_second", "speedup")]
    for name in [*names, "speedup"]:
        low, high = report[f"{name}_interval"]
        assert 0 < low <= report[name] <= high
    alone = printed(*ours(pair), "--prompt", "the", "--max-new-tokens", 4)
    assert alone["speedup"] is alone["plain_tokens_per_second"] is None
    assert "plain_text" not in alone["records"][0]


DRAFTS = [
    ("none", "iid:naive"),
    ("embedded", "iid:naive"),
    ("ngram:4", "anchored:lorenz"),
    ("lookup", "top:naive"),
    ("0.9*embedded+0.1*ngram", "anchored:lorenz"),
    ("embedded+ngram,lookup,layers:2", "distinct:recursive_rejection"),
]


@pytest.mark.parametrize(("draft", "scheme"), slow_but([DRAFTS[0], DRAFTS[3], *DRAFTS[-2:]], DRAFTS))
def test_greedy_text_is_that_of_plain_decoding_whatever_drafts(prompts, draft, scheme):
    settings = ("--temperature", 0, "--max-new-tokens", 6, "--tree", "2x1", "--compare", "--limit", 1)
    report = printed("generate", "--prompts", prompts, "--draft", draft, "--scheme", scheme, *settings)
    assert report["records"][0]["text"] == report["records"][0]["plain_text"]
    assert report["settings"]["draft"] == draft
    assert report["speedup_interval"] is None, "there is one prompt"
    assert (report["assisted_speedup"] is None) == ("embedded" not in draft), "what transformers takes"
    assert draft != "none" or report["block_efficiency"] == 1


def test_a_target_without_a_draft_model_looks_drafts_up(pair, prompts):
    """Exact as with any drafter, and one line says so."""
    call = ["generate", "--target", pair / "target", "--prompts", prompts, "--temperature", 0, "--max-new-tokens", 24]
    report, plain = printed(*call, "--tree", "1x1x1"), printed(*call, "--draft", "none")
    assert report["settings"]["draft"] == "lookup"
    assert report["block_efficiency"] > 1
    assert [record["text"] for record in report["records"]] == [record["text"] for record in plain["records"]]
    (line,) = (line for line in run(*call).stderr.splitlines() if "no draft model" in line)
    assert "looked up in the text, at no cost" in line


def test_drafters_of_another_target(pair, prompts):
    settings = ("--scheme", "distinct:naive", "--tree", "4x2x2x1", "--max-new-tokens", 12, "--batch", 3)
    named = ["--target", pair / "target", "--draft", f"{pair / 'draft'},ngram"]
    report = printed("generate", "--prompts", prompts, *named, *settings)
    assert report["acceptance_rate"] > 0.001
    assert report["optimal_acceptance_rate"] is None, "that of several draft models is not known"


def test_the_embedded_target_takes_other_drafts_of_its_vocabulary(tmp_path):
    shutil.copytree(FOLDER / "draft", tmp_path / "copy")
    theirs, ours = load_pretrained("embedded", str(tmp_path / "copy")), load_pretrained(None, None)
    assert all(map(torch.equal, theirs.draft.parameters(), ours.draft.parameters()))
    assert all(map(torch.equal, theirs.target.parameters(), ours.target.parameters()))


def texts(pair: Path, prompts: Path, *options: object) -> list[str]:
    """What the tiny pair continues the prompts by."""
    common = ("--max-new-tokens", 8, "--tree", "2x1")
    return [record["text"] for record in printed(*ours(pair), "--prompts", prompts, *common, *options)["records"]]


def test_penalties_truncation_stop_strings_batches_and_seeds(pair, prompts):
    common = ("--temperature", 0, "--max-new-tokens", 12, "--draft-temperature", 1)
    free = texts(pair, prompts, *common)
    assert free != texts(pair, prompts, *common, "--repetition-penalty", 1.8, "--min-p", 0.1)
    assert texts(pair, prompts, *common[2:], "--top-n-sigma", 1e-9) == free
    assert free == texts(pair, prompts, *common, "--batch", 3)
    assert free == texts(pair, prompts, *common, "--max-num-seqs", 2)
    letter = free[0][len(free[0]) // 2]
    stopped = texts(pair, prompts, *common, "--stop", letter, "--stop", "nowhere")
    for text, whole in zip(stopped, free, strict=True):
        assert whole.startswith(text)
        assert text == whole.partition(letter)[0]
    first, again, other = (texts(pair, prompts, "--seed", seed) for seed in (5, 5, 6))
    assert first == again != other


@pytest.fixture
def new_machine(tmp_path, monkeypatch) -> None:
    """No plan is kept of any pair."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MULTIDRAFT_TEST_PLANS", "fresh")


@pytest.mark.usefixtures("new_machine")
@pytest.mark.parametrize("seed", [("--seed", 5), ()], ids=["seed", "no_seed"])
def test_a_seed_repeats_a_run_of_a_new_pair_whatever_the_clock_shows(pair, prompts, monkeypatch, seed):
    """Without a seed trees follow the clock, as the second case shows."""
    found = set()
    for clock_seed in range(2):
        rng = random.Random(clock_seed)
        ticks = accumulate(rng.expovariate(1) for _ in count())
        monkeypatch.setattr(time, "perf_counter", partial(next, ticks))
        plans.LOADED_PROFILES.clear()
        call = [*ours(pair), "--prompts", prompts, "--limit", 2, "--max-new-tokens", 40, *seed]
        found.add(str([result["text"] for result in printed(*call)["records"]]))
    assert (len(found) == 1) == bool(seed)
    assert seed == () or not list(Path(os.environ["XDG_CACHE_HOME"]).rglob("*.json")), "nothing was timed"


def test_text_for_people_is_the_decoding_of_the_tokens(pair, prompts):
    tokenizer = AutoTokenizer.from_pretrained(pair / "target")
    call = [*ours(pair), "--prompts", prompts, "--max-new-tokens", 12, "--seed", 4, "--tree", "2x1"]
    shown = run(*call, "--compare").stdout
    models = [LlamaForCausalLM.from_pretrained(pair / role).eval() for role in ("target", "draft")]
    for index, line in enumerate(prompts.read_text().splitlines()):
        prompt = json.loads(line)["prompt"]
        settings = dict(tree="2x1", max_new_tokens=12, generator=[torch.Generator().manual_seed(4 * 1_000_003 + index)])
        tokens, _ = md.generate(*models, [tokenizer(prompt)["input_ids"]], **settings)
        assert f"── p{index} ──\n{prompt}{tokenizer.decode(tokens[0], skip_special_tokens=True)}\n" in shown
    words = ["drafted and accepted", "recovered", "bonus", "block efficiency", "optimal acceptance rate", "cache"]
    words += ["multi-draft", "plain decoding", "assisted generation", "prompt look-up"]
    assert [word for word in words if word not in shown] == []
    assert run(*call, "--batch", 3).stdout.count("── p") == 3
    for given, labels in (("lookup", ["prompt look-up"]), ("none", [])):
        rows = run(*call, "--compare", "--baselines", given, "--limit", 1).stdout
        assert [label for label in ("assisted generation", "prompt look-up") if label in rows] == labels


def test_without_drafts_there_is_one_speed_and_nothing_to_compare(pair, prompts):
    call = [*ours(pair)[:3], "--draft", "none", "--prompts", prompts, "--max-new-tokens", 6, "--compare", "--limit", 2]
    result = run(*call, "--baselines", "none")
    assert len(re.findall("tokens per second", result.stdout)) == 1
    assert "nothing to compare" in result.stderr
    assert len(set(re.findall(r"(?:plain decoding|tokens per second)\W+(\d+\.\d)", run(*call).stdout))) == 1
    report = printed(*call)
    assert report["tokens_per_second"] == report["plain_tokens_per_second"]
    assert (report["speedup"], report["speedup_interval"]) == (None, None)
    assert report["lookup_speedup"] > 0


@pytest.mark.parametrize("drafts", [True, False])
def test_tokens_of_steps_without_drafts_have_no_colour(pair, drafts):
    options = ["--tree", "2x1", "--max-new-tokens", 60] if drafts else ["--draft", "none"]
    result = run(*ours(pair), *options, "--prompt", "the", color=True)
    colours = {typer.style("", fg=colour, reset=False) for colour in terminal.COLOURS.values()}
    assert {colour for colour in colours if colour in result.stdout} == (colours if drafts else set())
    assert terminal.UNDRAFTED_KIND not in terminal.COLOURS
    assert ("■ drafted and accepted" in result.stdout) == drafts == ("multi-draft" in result.stdout)


@pytest.mark.usefixtures("new_machine")
def test_the_note_that_steps_are_timed_stands_before_the_text(pair):
    say_once.cache_clear()
    log, notes = logging.getLogger("multidraft"), terminal.Notes()
    log.addHandler(notes)
    target = pair / "target"  # whose own drafts are right, so that the warm-up has few steps
    result = run("generate", "--target", target, "--draft", target, "--prompt", "the", "--max-new-tokens", 60)
    log.removeHandler(notes)
    assert 0 <= result.output.find("timing the steps") < result.output.find("── prompt")


def test_keys_of_a_prompts_file_that_nobody_reads_are_named(tmp_path, capsys):
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "a", "max_tokens": 3}, {"id": None, "prompt": "b", "system": "x", "max_tokens": 3}]
    file.write_text("\n".join(map(json.dumps, lines)))
    assert [prompt.id for prompt in read_prompts(None, file, None)] == ["0", "1"]
    assert capsys.readouterr().err.endswith("id, task, prompt are read, and nothing else: not max_tokens, system\n")


def wrong(folder: Path, pair: Path) -> list[tuple[list[object], str]]:
    """Wrong input of `generate`, and a word of the advice that it must meet with."""
    named, hi, folder_of = ours(pair)[1:], ["--prompt", "the"], ["--target", pair / "target", "--draft"]
    (folder / "bad.jsonl").write_text('{"id": 1, "prompt": "the"}\n\n{"id": 2, "prompt": \n')
    (folder / "nameless.jsonl").write_text('{"id": 1, "text": "the"}\n')
    (folder / "twice.jsonl").write_text('{"prompt": "the"}\n\n{"id": "0", "prompt": "the"}\n')
    (folder / "empty.jsonl").write_text("\n")
    written(folder / "long.jsonl", "the", "storm " * 300)
    (folder / "hollow").mkdir()
    return [
        ([*hi, "--target", folder / "none", "--draft", pair / "draft"], "no folder"),
        ([*hi, "--target", folder / "hollow", "--draft", pair / "draft"], "config.json"),
        ([*hi, "--draft", "0.5*ngram+0.6*lookup"], "summing to 1"),
        ([*hi, "--draft", "0.5*ngram+lookup"], "as many"),
        ([*hi, "--draft", "layers"], "does not parse"),
        ([*hi, "--draft", "layers:3"], "use 1 to 2"),
        *(
            ([*hi, "--draft", f"{name}:{number}"], f"{name}:{number} has no number from 1 to 1000; write {name}:")
            for name in ("ngram", "lookup", "layers")
            for number in ("0", "-1", "x", "", "2.5", "1001", "3:3", "\u0663", "9" * 40)
        ),
        ([*hi, "--draft", "0.5*ngram+0.5*lookup:-2"], "lookup:-2 has no number"),
        ([*hi, "--draft", "copy:3+embedded"], "copy takes no number"),
        ([*hi, "--draft", "eagle3"], "write eagle3:FOLDER"),
        ([*hi, "--draft", "medusa:"], "write medusa:FOLDER"),
        ([*hi, "--draft", "lookup+copy"], "copy goes first"),
        ([*hi, *folder_of, "embedded"], "leave out --target"),
        ([*hi, "--draft", "ngram,lookup"], "use distinct:recursive_rejection"),
        ([*hi, "--draft", "ngram", "--scheme", "distinct:naive"], "pass a list"),
        ([*hi, *folder_of, pair / "stranger"], "choose a draft"),
        ([*named, *hi, "--top-p", 2], "--top-p"),
        ([*named, "--prompts", folder / "long.jsonl"], "'p1'"),
        (named, "either --prompt"),
        ([*named, "--prompts", folder / "none.jsonl"], "check the path"),
        ([*named, "--prompts", folder / "bad.jsonl"], "line 3"),
        ([*named, "--prompts", folder / "nameless.jsonl"], "line 1"),
        ([*named, "--prompts", folder / "twice.jsonl"], "lines 1 and 3 have the id '0'"),
        ([*named, "--prompts", folder / "empty.jsonl"], "no prompts"),
        ([*named, *hi, "--colour", "red"], "--colour"),
    ]


def test_wrong_input_ends_with_one_line_that_says_what_to_do(tmp_path, pair, subtests):
    for arguments, advice in wrong(tmp_path, pair):
        with subtests.test(advice):
            ends_with_advice(run("generate", *arguments), advice)
    ends_with_advice(run("fly"), "fly")


def test_schemes():
    listed = printed("schemes")
    assert [entry["name"] for entry in listed] == list(SCHEMES)
    assert all(f"{entry['law']}:{entry['rule']}" == entry["name"] for entry in listed)
    assert {entry["name"] for entry in listed if not entry["exact"]} == {"iid:global_resolution"}
    lines = run("schemes", env={"COLUMNS": "40"}).stdout.splitlines()  # a table does not wrap where nobody looks
    for entry in listed:
        if not entry["small"] and not entry["known_as"]:
            assert any(entry["name"] in line and line.rstrip().endswith(entry["source"]) for line in lines)
    assert {"LAW:max_flow", "iid:global_resolution"} <= set("\n".join(lines).split())
    page = (Path(__file__).parents[2] / "docs" / "schemes.md").read_text()
    table = page.partition("<!-- schemes -->\n")[2].partition("<!-- /schemes -->")[0]
    assert table == run("schemes", "--markdown").stdout


def test_what_tuning_finds_is_shown_drawn_and_kept(tmp_path, pair):
    options = [*ours(pair)[1:], "--quick", "--budget", 0, "--temperature", 1, "--prompt", "the old house"]
    shown = run("tune", *options, "--out", tmp_path / "plan", "--plot", tmp_path / "costs.svg").stdout
    for words in (
        "milliseconds",
        "each drafted node",
        "acceptance at T",
        "8 drafts",
        "times plain",
        "T = 1: one text is",
    ):
        assert words in shown
    picture = (tmp_path / "costs.svg").read_text()
    for name in ("no drafts", "4x2x2", "auto", "1 row", "T = 1"):  # matplotlib writes the text of a label as a comment
        assert f"<!-- {name} -->" in picture
    assert json.loads((tmp_path / "plan").read_text())


def test_what_was_tuned_is_kept_when_the_rest_is_stopped(tmp_path, pair, monkeypatch):
    """The clock is asked once more when the plan has been written: for the table."""
    plan, picture, clock = tmp_path / "plan", tmp_path / "costs.svg", time.monotonic

    def stopped() -> float:
        if plan.exists():
            raise KeyboardInterrupt
        return clock()

    monkeypatch.setattr(time, "monotonic", stopped)
    options = [*ours(pair)[1:], "--budget", 0, "--temperature", 1, "--prompt", "the old house"]
    result = run("tune", *options, "--out", plan, "--plot", picture)
    assert result.exit_code == 130
    assert Profile.from_json(plan.read_text()).timed_rows
    assert "ms of a step" in picture.read_text()


def test_help_version_and_completion():
    shown, wide = run("generate", "--help").stdout, run("--help", env={"COLUMNS": "200"}).stdout
    assert "0.9*a+0.1*b" in "".join(shown.split("│")).replace("\n", "").replace(" ", "")
    assert "<bool>" not in shown + wide
    assert "--install-completion" in wide
    for group in ("Models", "Prompts", "Sampling", "Drafting", "Run", "Output"):
        assert f"─ {group} ─" in shown
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"multidraft {md.__version__}\n")


def test_help_waits_for_neither_torch_nor_transformers():
    code = (
        "import sys; from multidraft.cli.main import app; app(['--help'], standalone_mode=False); print(*sys.modules)"
    )
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"typer", "multidraft_research"} <= {*modules}
    assert not {"torch", "transformers", "numba"} & {*modules}


def test_a_command_that_cannot_be_loaded_says_so():
    command = load_command(EntryPoint("broken", "no.such:command", COMMANDS))
    with pytest.raises(md.AdviceError, match=r"broken cannot be loaded from no\.such:command"):
        command.main(["--anything", "x"], standalone_mode=False)


def runs(*rates: float) -> Runs:
    """Batches of a second each."""
    return Runs((int(rate), 1.0) for rate in rates)


def test_the_interval_is_that_of_prompts():
    """Prompts on which both sides are as slow do not widen the interval of the ratio; a single prompt has none."""
    ours, plain = runs(20, 200, 40, 400), runs(10, 100, 20, 200)
    assert ours.speedup_over(plain) == 2
    assert ours.interval(plain) == (2, 2)
    low, high = ours.interval()
    assert low < 165 < high
    assert runs(10, 20, 30).interval(runs(10, 10, 10)) == (1, 3)
    assert runs(10).interval(plain) is None


def test_a_hint_where_drafting_does_not_pay():
    """Not where nothing was measured beside it, or where it is as fast."""
    plain = Info(tokens=600, row_passes=600, seconds=dict.fromkeys(TIMED_PARTS, 0.0) | {"target": 300.0})
    counts = dict(draft_steps=200, nodes=8800, lengths=[200, 0], ranks=[0], recovered=200)
    slow, fast, short = (
        Info(tokens=200, row_passes=steps, seconds=dict.fromkeys(TIMED_PARTS, 0.0) | {"target": seconds}, **counts)
        for steps, seconds in ((200, 400.0), (200, 100.0), (199, 400.0))
    )
    advice = hint(slow, plain, "44", 5) or ""
    assert "no drafts are best here: --draft none (tree 44 runs at 0.25 times plain decoding, 0% of first" in advice
    assert hint(slow, Info(), "44", 5) is hint(fast, plain, "44", 5) is None
    for info, prompts in ((slow, 4), (short, 5)):
        assert "too little to tell" in (hint(info, plain, "44", prompts) or "")


@pytest.mark.parametrize("compares", [True, False])
@pytest.mark.parametrize("busy", [[True, False], [False, True], [False, False]])
def test_a_busy_machine_is_named_in_place_of_ratios(monkeypatch, capsys, busy, compares):
    answers = iter([*busy, *busy[1:] * 9])
    monkeypatch.setattr(psutil, "getloadavg", lambda: (1e3 * next(answers), 0.0, 0.0))
    report = RunReport({"tree": "1"}, None)
    info = Info(tokens=9, row_passes=9, draft_steps=9, seconds=dict.fromkeys(TIMED_PARTS, 0.5))
    info.finish_reasons = ["stop"]
    report.add([Prompt(0, "", "", "")], ([""], info), ([""], info) if compares else None, {})
    report.print(as_json=False)
    shown = capsys.readouterr()
    assert ("the machine is busy" in shown.err) == any(busy)
    assert ("too little to tell" in shown.err) == (compares and not any(busy))
    assert ("busy" in shown.out, bool(re.search(r"\b1\.00\b", shown.out))) == (
        compares and any(busy),
        compares and not any(busy),
    )
    assert (report.as_dict()["speedup"] is None) == (not compares or any(busy))
    assert report.as_dict()["busy"] == any(busy)


@pytest.mark.parametrize(
    ("temperature", "draft", "texts", "said"),
    [
        (0, "model", ["a", "b"], "2 of 2"),
        (0, "model", ["a", "c"], "1 of 2"),
        (0, "none", ["a", "b"], None),
        (0.7, "model", ["a", "c"], None),
    ],
)
def test_greedy_texts_are_compared_with_plain_decoding(capsys, temperature, draft, texts, said):
    report = RunReport({"tree": "1", "temperature": temperature, "draft": draft}, None)
    info = Info(tokens=9, row_passes=9, draft_steps=9, seconds=dict.fromkeys(TIMED_PARTS, 0.5))
    info.finish_reasons = ["stop", "length"]
    report.add([Prompt(index, "", "", "") for index in range(2)], (["a", "b"], info), (texts, info), {})
    assert [record["finish_reason"] for record in report.records] == info.finish_reasons
    report.print(as_json=False)
    shown = capsys.readouterr()
    assert re.findall(r"equal to plain decoding's\s+(\d of \d)", shown.out) == [said] * (said is not None)
    assert ("rounded otherwise" in shown.err) == (said == "1 of 2")
    assert report.as_dict()["equal_texts"] == (said and int(said[0]))


@pytest.mark.parametrize(
    ("facts", "rows"),
    [
        ({"draft_steps": 2, "drawing_passes": 2, "measured": 2}, ["not measured (2 steps with drafts)"] * 2),
        ({"draft_steps": 1, "drawing_passes": 1, "acceptance": 0.0}, ["not measured (1 step with drafts)"] * 2),
        ({"draft_steps": 9, "drawing_passes": 9, "acceptance": 4.5}, ["0.500", "unknown"]),
        (
            dict(draft_steps=9, drawing_passes=9, measured=9, expected_acceptance=4.5, expected_squares=2.97)
            | dict(optimal_acceptance=5.4, gaps=9, gap=0.9, gap_squares=0.16),
            ["0.500 ± 0.100", "0.600 (+0.100 ± 0.031)"],
        ),
    ],
)
def test_acceptance_is_shown_with_its_error_or_not_at_all(facts, rows):
    """Nine rates with a variance of 0.09 have a mean with an error of 0.1; that of the gap is another."""
    report = RunReport({"tree": "1"}, None)
    report.info = Info(tokens=9, row_passes=9, **facts)
    shown = {name.strip(): value for name, value, _ in report.summary_rows()}
    assert [shown["acceptance rate"], shown["optimal acceptance rate"]] == rows


@pytest.mark.parametrize(
    ("draft", "drafted", "steps", "said"),
    [("lookup", 0, 200, True), ("lookup", 1, 200, False), ("lookup", 0, 199, False), ("none", 0, 200, False)],
)
def test_that_nothing_was_drafted_is_said_once_there_were_enough_steps(monkeypatch, draft, drafted, steps, said):
    monkeypatch.setattr(psutil, "getloadavg", lambda: (0.0, 0.0, 0.0))
    report = RunReport({"tree": "auto", "draft": draft}, None)
    report.info = Info(tokens=steps, row_passes=steps, draft_steps=drafted)
    assert ("nothing was drafted" in (report.advice or "")) == said


def test_trees_are_told_by_their_shares_and_long_names_by_their_size():
    report = RunReport({}, None)
    report.info = Info(shapes={"3/2,1,0/1,0,0": 3, "": 1})
    assert report.trees == "7 drafts in 3 levels 75%, none 25%"


def test_a_draft_with_a_part_of_the_vocabulary_assists_transformers_too():
    """As one of the whole vocabulary, whose other tokens are never drafted; the text stays the target's."""
    target = tiny_model("llama")
    torch.manual_seed(3)
    ids = list(range(0, VOCABULARY, 2))
    draft = LlamaForCausalLM(LlamaConfig(**ROTARY | {"vocab_size": len(ids) + 1}, **NO_IDS, target_ids=ids)).eval()
    wide = with_whole_vocabulary(draft, VOCABULARY)
    tokens = torch.tensor([[0, 1, 2, 60]])
    logits = draft(input_ids=torch.tensor([[0, len(ids), 1, 30]])).logits
    theirs = wide(input_ids=tokens).logits
    assert torch.equal(theirs[..., ids], logits[..., : len(ids)])
    assert theirs[..., 1::2].isneginf().all()
    assert draft.config.vocab_size == len(ids) + 1
    settings = dict(max_new_tokens=12, do_sample=False, attention_mask=torch.ones_like(tokens), pad_token_id=0)
    assert torch.equal(target.generate(tokens, assistant_model=wide, **settings), target.generate(tokens, **settings))
    way = baselines(Models(target, LookupThenModel([Lookup(VOCABULARY), draft]), None), {"stop": None}, "llama")
    assert way == {LOOKUP: {"prompt_lookup_num_tokens": 10}, ASSISTED: {"assistant_model": wide}}


class Head(TableModel):
    """A head, as far as transformers' ways to draft go."""

    hidden_layers = (1,)


@pytest.mark.parametrize(("target", "names"), [("smollm2", {LOOKUP, ASSISTED}), ("another", {LOOKUP})])
def test_transformers_drafts_for_smollm2_with_its_small_model_in_place_of_a_head(target, names, monkeypatch):
    monkeypatch.setattr("multidraft.cli.run_report.small_draft", lambda: tiny_model("qwen2"))
    pair = Models(tiny_model("llama"), Head(random_table(5, 1, 1), 5), None)
    assert baselines(pair, {"stop": None}, target).keys() == names


def test_an_error_in_the_log_is_said_each_time_and_its_traceback_once(capsys):
    """Before, the server never said why a step had failed."""
    log = logging.Logger("multidraft.tests")
    log.addHandler(terminal.Notes())

    def fail(reason: str) -> None:
        try:
            raise RuntimeError(reason)
        except RuntimeError as error:
            log.error("a step has failed", exc_info=error)

    for reason in "no room", "no\nroom", "no room":
        fail(reason)
    log.warning("no error")
    written = capsys.readouterr().err
    assert written.count("Traceback (most recent call last):") == written.count("raise RuntimeError(reason)") == 1
    assert written.count("a step has failed (RuntimeError: no room)") == 3
    assert written.endswith("a step has failed (RuntimeError: no room)\nno error\n")
