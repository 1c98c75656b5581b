"""Nothing that was computed is lost: results line by line, files whole or not at all, and an orderly end of any run."""

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import ends_with_advice, results, run, stop_at, written

from multidraft.cli import main as cli
from multidraft.cli import terminal
from multidraft.errors import AdviceError
from multidraft.io import files

pytestmark = pytest.mark.usefixtures("unchecked")
FULL = Path("/dev/full")
SETTINGS = ["--max-new-tokens", "6", "--tree", "2x1", "--temperature", "0"]
needs_linux = pytest.mark.skipif(not FULL.exists(), reason="devices, signals and shells differ")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> Path:
    """Three prompts in a file, which begins with a byte order mark."""
    file = tmp_path_factory.mktemp("lost") / "prompts.jsonl"
    return written(file, "the old", "a storm", "alone", encoding="utf-8-sig")


@pytest.fixture(scope="module")
def generate(pair, prompts):
    """Calls `multidraft generate` with the tiny pair."""
    models = ["--target", pair / "target", "--draft", pair / "draft"]
    return lambda *words: run("generate", *models, "--prompts", prompts, *SETTINGS, *words)


@pytest.fixture(scope="module")
def whole(generate) -> list[dict]:
    """What a run that nobody stops has to say of each."""
    return json.loads(generate("--json").stdout)["records"]


def test_results_come_line_by_line_and_a_second_call_goes_on(generate, whole, tmp_path, monkeypatch):
    file = tmp_path / "results.jsonl"
    with monkeypatch.context() as patched:
        stop_at(patched, call=3, tokens=2)  # the first is the warm-up
        result = generate("--jsonl", file, "--json")
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "multidraft: stopped after 1 of 3 prompts"
    first, second = results(file)
    assert json.loads(result.stdout)["records"] == [first, second]
    assert (first, second["interrupted"]) == (whole[0], True)
    assert whole[1]["text"].startswith(second["text"] or "nothing")
    with file.open("a") as end:
        end.write('{"id": "p')  # as though it had been killed in the middle of a line
    again = generate("--jsonl", file, "--json")
    assert "1 of 3" in again.stderr
    assert results(file) == whole
    assert [record["id"] for record in json.loads(again.stdout)["records"]] == ["p1", "p2"]
    content = file.read_bytes()
    assert generate("--jsonl", file).exit_code == 0
    assert file.read_bytes() == content


def test_results_of_another_run_are_refused_and_a_trace_is_not_written_over(generate, tmp_path):
    file, trace, other = tmp_path / "results.jsonl", tmp_path / "trace.jsonl", tmp_path / "other.jsonl"
    assert generate("--jsonl", file, "--trace", trace, "--limit", 1).exit_code == 0
    other.write_text('{"id": "p0", "prompt": "Another"}\n')
    content = file.read_bytes(), trace.read_bytes()
    ends_with_advice(generate("--jsonl", file, "--prompts", other), "prompts")
    ends_with_advice(generate("--jsonl", file, "--seed", 3, "--limit", 1), "seed 0 instead of 3")
    assert "would be lost" in generate("--jsonl", file, "--trace", trace, "--limit", 1).stderr.splitlines()[-1]
    assert (file.read_bytes(), trace.read_bytes()) == content


@pytest.mark.parametrize(("batch", "stop"), [(1, 5), (3, 12)])
def test_ctrl_c_prints_the_texts_so_far_and_the_report(generate, whole, monkeypatch, batch, stop):
    """Also in the first batch, of which nothing is printed before its end if it has several rows."""
    stop_at(monkeypatch, call=2, tokens=stop)
    result = generate("--batch", batch)
    assert result.exit_code == 130
    printed = []
    for record, prompt in zip(whole[:batch], ("the old", "a storm", "alone"), strict=False):
        text = result.stdout.partition(f"── {record['id']} ──")[2].splitlines()[1]
        printed.append(text.removeprefix(prompt))
        assert record["text"].startswith(printed[-1])
    assert any(printed)  # the beginning of a character is held back
    tokens = re.search(r"^ +tokens +(\d+)", result.stdout, re.MULTILINE)
    assert tokens
    assert stop <= int(tokens[1]) < batch * 6


def test_a_partial_text_is_kept_during_plain_decoding_too(generate, whole, monkeypatch):
    stop_at(monkeypatch, call=4, tokens=1)  # two warm-ups, then the first prompt with drafts
    records = json.loads(generate("--json", "--compare").stdout)["records"]
    assert all(record["finish_reason"] is None for record in records)
    assert [(record["id"], record["text"], record["interrupted"]) for record in records] == [
        ("p0", whole[0]["text"], True)
    ]


@needs_linux
@pytest.mark.parametrize("option", ["--jsonl", "--trace"])
def test_a_full_disk_ends_with_one_line(generate, option):
    result = generate(option, FULL)
    assert (result.exit_code, "No space left" in result.stderr.splitlines()[-1]) == (2, True)
    assert FULL.is_char_device()


class Broken(io.TextIOWrapper):
    """A stdout that takes nothing any more."""

    def __init__(self, number: int):
        super().__init__(io.BytesIO(), write_through=True)
        self.number = number

    def write(self, text: str) -> int:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(("number", "word"), [(errno.EPIPE, "closed"), (errno.ENOSPC, "No space left")])
def test_a_stdout_that_takes_nothing_ends_with_one_line(number, word, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", Broken(number))
    with pytest.raises(SystemExit) as ended:
        cli.app(["schemes", "--json"])
    (line,) = capsys.readouterr().err.splitlines()
    assert (ended.value.code, line.startswith("multidraft: "), word in line) == (2, True, True)


@needs_linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "word", "locale"),
    [("| head -c 1 >&3", "closed", "C.UTF-8"), ("> /dev/full", "No space left", "C"), (">&-", "", "C")],
)
def test_a_closed_pipe_a_full_disk_and_no_stdout_in_a_shell(ending, word, locale):
    script = f'exec 4>&2; "$@" schemes {"--json" if word else ""} 3>&2 2>&4 {ending}'
    environment = os.environ | {"LC_ALL": locale, "PYTHONIOENCODING": "ascii"}
    called = ["sh", "-c", script, "sh", sys.executable, "-m", "multidraft"]
    error = subprocess.run(called, stderr=-1, stdout=-1, env=environment, timeout=120).stderr.decode()
    assert "Traceback" not in error
    assert "Exception ignored" not in error
    assert word in error


def test_sigterm_in_the_middle_of_a_prompt(prompts, monkeypatch, capsys):
    before = signal.getsignal(signal.SIGTERM)
    stop_at(monkeypatch, call=1, tokens=1, stop=lambda: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr(sys, "argv", ["multidraft", "generate", "--prompts", str(prompts), "--json"])
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    output, error = capsys.readouterr()
    assert ended.value.code == 143
    assert error.splitlines()[-1] == "multidraft: stopped after 0 of 3 prompts"
    assert json.loads(output)["interrupted"]


SWALLOWING = """
import importlib.abc, importlib.util, signal, sys
from multidraft import machine
class Heard(importlib.abc.Loader):
    def exec_module(self, module):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:  # as modules of others do, which then fail in their own way
            pass
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_loader(name, Heard()) if name == "loaded" else None
sys.meta_path.insert(0, Finder())
machine.handle_signals()
import loaded
print("swallowed")
"""


def test_ctrl_c_while_a_module_is_loaded_is_not_swallowed():
    ended = subprocess.run([sys.executable, "-c", SWALLOWING], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "multidraft: stopped\n")


@needs_linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("delay", [0.0, *(pytest.param(delay, marks=pytest.mark.slow) for delay in (0.5, 4))])
def test_a_signal_ends_with_one_line(number, delay):
    """From the moment on in which our own first module is there; Python itself is loaded before.

    A shell starts background jobs with Ctrl-C ignored, and their children inherit it: here it is not.
    """
    command = [sys.executable, *([] if delay else ["-v"]), "-m", "multidraft", "generate", "--target", "embedded"]
    command += ["--prompt", "It was", "--json", "--max-new-tokens", "900", "--tree", "1"]
    heed = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    with subprocess.Popen(command, stderr=-1, stdout=-1, text=True, preexec_fn=heed) as shown:
        assert shown.stderr is not None
        while not delay and "multidraft.cli" not in shown.stderr.readline():
            pass
        time.sleep(delay)
        shown.send_signal(number)
        _, error = shown.communicate(timeout=60)
    assert shown.returncode == 128 + number, error[-2000:]
    assert "Traceback" not in error
    assert error.count("multidraft: stopped") == 1


def test_files_are_whole_or_not_there_at_all_and_lie_where_a_link_points(tmp_path, monkeypatch):
    file, link = tmp_path / "folder" / "report.json", tmp_path / "link"
    file.parent.mkdir()
    link.symlink_to(file)
    terminal.write_json(link, {"a": 1})
    assert link.is_symlink()

    def torn(path, content):
        with path.open("wb") as half:
            half.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", torn)
    for path in (file, file.with_name("new.safetensors")):
        with pytest.raises(AdviceError, match="No space left"):
            files.write(path, b"content")
    assert json.loads(file.read_text()) == {"a": 1}
    assert [path.name for path in file.parent.iterdir()] == ["report.json"]


def test_outputs_are_checked(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    files.check(tmp_path / "new", "--out")
    wrong = {tmp_path: "folder", tmp_path / "a" / "b": "no folder", tmp_path / "model" / "config.json": "an input"}
    for path, word in wrong.items():
        with pytest.raises(AdviceError, match=word):
            files.check(path, "--out", [tmp_path / "model", "a/hub-name", None])
    assert not (tmp_path / "new").exists()


def test_a_note_stands_on_a_line_without_a_progress_bar(capsys):
    """The bar is taken away before it, and drawn again below it."""
    from tqdm import tqdm

    for _ in tqdm(range(2), desc="decoding", mininterval=0):
        terminal.note("note")
    error = capsys.readouterr().err  # a file: a line of it has a bar or a note
    lines = [line.split("\r")[-1] for line in error.split("\n")]
    assert lines.count("note") == error.split("\n").count("note") == 2
    assert "100%" in lines[-2]


def test_any_text_can_be_shown_noted_and_said(monkeypatch, capsys):
    """Control characters show on a terminal and are raw in JSON; notes stand on lines of their own."""
    text = "a\x1b[31m\x07\x9b\x7f\tb"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    terminal.show(text)
    terminal.note("one")
    terminal.note("two")
    shown = capsys.readouterr()
    assert "␛[31m␇\\x9b␡\tb" in shown.out
    assert shown.err == "\none\ntwo\n"
    terminal.print_json(text)
    assert json.loads(capsys.readouterr().out) == text
    assert terminal.message("no file \x1b]0;evil\x07") == "no file ␛]0;evil␇"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), "ascii"))
    terminal.prepare()
    assert input() == "caf\ufffd"
