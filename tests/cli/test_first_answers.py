"""Wrong arguments are refused before torch is imported; what is cut, and a reader that goes away, are handled."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run

from multidraft.verification import names, registry

WITHOUT_TORCH = """
import sys
for name in ("torch", "transformers", "numba"):
    sys.modules[name] = None  # importing it raises
from multidraft.cli.main import app
app(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["--prompt", "x", "--scheme", "magic"], "unknown scheme 'magic'"),
        (["--prompt", "x", "--scheme", "anchored:lorentz"], "did you mean anchored:lorenz"),
        (["--prompt", "x", "--tree", "3y4"], "does not parse"),
        (["--prompt", "x", "--tree", "auto,wide"], "write auto"),
        (["--prompt", "x", "--plan", "/no/plan"], "check the path"),
        (["--prompt", "x", "--trace", "/no/folder/x"], "no folder"),
        (["--prompt", "x", "--draft", "lookup+copy"], "copy goes first"),
        (["--prompt", "x", "--top-p", "2"], "--top-p"),
        (["--prompts", "/no/prompts"], "check the path"),
        (["--prompt", "x", "--target", "no.gguf"], "there is no file 'no.gguf'"),
        (["--prompt", "x", "--target", "/no/folder"], "there is no folder '/no/folder'"),
        (["--prompt", "x", "--target", "embedded", "--draft", "no.gguf"], "there is no file 'no.gguf'"),
    ],
)
def test_wrong_arguments_are_refused_without_torch(arguments, advice):
    command = [sys.executable, "-c", WITHOUT_TORCH, "generate", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert advice in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("multidraft generate --scheme iid:l", ["iid:lorenz", "iid:linear_program"]),
        (
            "multidraft generate --scheme spechub:",
            ["spechub:spechub", "spechub:naive", "spechub:max_flow", "spechub:linear_program"],
        ),
        ("multidraft serve --target s", ["smollm2"]),
        ("multidraft tune --draft eag", ["eagle3:", "eagle3:smollm2"]),
        ("multidraft train-head --kind d", ["dflash"]),
        ("multidraft train-head --target e", ["embedded"]),
        ("multidraft audit top:n", ["top:naive"]),
    ],
)
def test_the_shell_completes_values_without_torch(line, values):
    """As bash asks for them. The last word is what is completed."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_MULTIDRAFT_COMPLETE": "complete_bash"}
    program = WITHOUT_TORCH.replace("app(sys.argv[1:])", 'app([], prog_name="multidraft")')
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | words)
    assert ended.stdout.split() == values, ended.stderr


def test_the_names_that_are_known_without_torch_are_those_of_the_schemes():
    assert {*names.SCHEME_NAMES} == registry.BUILT_IN_NAMES
    shipped = {name for name, entry in registry.entries().items() if "multidraft_research" in entry.rule.__module__}
    assert {*(names.installed_names() or ())} >= shipped


@pytest.mark.usefixtures("unchecked")
def test_a_context_that_is_too_small_for_the_new_tokens_is_said(pair: Path, prompts: Path):
    """The context is 96 tokens."""
    call = ["generate", "--target", pair / "target", "--draft", pair / "draft", "--prompts", prompts, "--tree", "2x1"]
    cut = run(*call, "--limit", 1, "--max-new-tokens", 200)
    assert "the target's context is 96: of 1 prompt 1 cannot get 200 new tokens" in cut.stderr
    assert "context" not in run(*call, "--limit", 1, "--max-new-tokens", 8).stderr


@pytest.mark.usefixtures("unchecked")
def test_a_draft_with_a_shorter_context_cuts_nothing(pair: Path, prompts: Path, tmp_path: Path):
    """Its context is 16 tokens, and 40 new ones are asked for."""
    draft = shutil.copytree(pair / "draft", tmp_path / "draft")
    config = json.loads((draft / "config.json").read_text()) | {"max_position_embeddings": 16}
    (draft / "config.json").write_text(json.dumps(config))
    call = ["generate", "--target", pair / "target", "--prompts", prompts, "--limit", 1, "--tree", "2x1"]
    call += ["--temperature", 0, "--max-new-tokens", 40, "--json"]
    short, plain = run(*call, "--draft", draft), run(*call, "--draft", "none")
    assert "the draft's context is 16: behind it nothing is drafted" in short.stderr
    texts = [[row["text"] for row in json.loads(ran.stdout)["records"]] for ran in (short, plain)]
    assert texts[0] == texts[1] != [""]


def test_a_reader_of_the_help_that_goes_away_ends_it_quietly():
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run([sys.executable, "-m", "multidraft", "--help"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert ended.stderr == b""


@pytest.mark.parametrize("command", ["study", "generate"])
def test_a_reader_of_some_lines_of_the_help_ends_it_quietly(command):
    """As `head` does; the help of a group is written in parts."""
    with subprocess.Popen(
        [sys.executable, "-m", "multidraft", command, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.read(1500)
        process.stdout.close()
        assert process.stderr.read() == b""
