"""A GGUF file as transformers reads it: every weight in its place, kept whole or not at all."""

import copy
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ggufs import pair_files, tiny_file, to_gguf, window_file, window_model
from tiny import tiny_model
from transformers import PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.models.gguf import IK_LLAMA_CPP
from multidraft.models.gguf.choice import check_readable
from multidraft.models.gguf.keeping import cached_model
from multidraft.models.huggingface.from_gguf import convert, folder_of, read
from multidraft.models.huggingface.loading import load_model, load_tokenizer
from multidraft.zoo import load_pair


def differing(model: PreTrainedModel, path: Path) -> list[str]:
    """The weights of a model that a file does not give back."""
    config, weights = read(path, torch.float32)
    assert config.model_type == model.config.model_type
    ours = {name: w for name, w in model.state_dict().items() if name in weights or name != "lm_head.weight"}
    assert ours.keys() == weights.keys()
    return [name for name in ours if not ours[name].equal(weights[name])]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_every_weight_comes_back_and_the_configuration_gives_the_same_logits(family):
    model, (config, weights) = tiny_model(family), read(tiny_file(family), torch.float32)
    assert differing(model, tiny_file(family)) == []
    again = type(model)(config).eval()
    again.load_state_dict(weights, strict=False)
    tokens = torch.arange(12)[None]
    with torch.inference_mode():
        assert again(tokens).logits.equal(model(tokens).logits)


def test_another_family_is_converted_by_transformers_or_refused(tmp_path, monkeypatch, caplog):
    """Gemma 3: with its windows and its scale, which transformers' own code leaves at their defaults."""
    tokenizer = load_pair().tokenizer  # in place of the file's, which has none
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *_, **__: tokenizer)
    folder, model = folder_of(window_file(), tmp_path, torch.float32), window_model()
    again, tokens = load_model(str(folder)), torch.arange(24)[None]  # longer than the window
    assert (again.config.layer_types, again.config.query_pre_attn_scalar) == (model.config.layer_types, 8)
    with torch.inference_mode():
        assert (again(tokens).logits - model(tokens).logits).abs().max() < 1e-4 * model(tokens).logits.abs().max()
    assert "converts the family gemma3" in caplog.text
    content = window_file().read_bytes()
    (tmp_path / "other.gguf").write_bytes(content.replace(b"gemma3", b"plamo3"))
    for engine in ("transformers", IK_LLAMA_CPP):
        with pytest.raises(AdviceError, match=r"of the family 'plamo3'"):
            check_readable(tmp_path / "other.gguf", engine)
    with pytest.raises(AdviceError, match=r"plamo3 is not supported yet; llama.cpp reads it \("):
        folder_of(tmp_path / "other.gguf", tmp_path, torch.float32)


def test_a_file_that_nothing_reads_is_refused_before_torch_is_loaded(tmp_path):
    """As an error in the first second is worth more than one in the tenth."""
    (tmp_path / "other.gguf").write_bytes(window_file().read_bytes().replace(b"gemma3", b"plamo3"))
    script = (
        "import sys; from multidraft.cli.pair import check_names; from multidraft.errors import AdviceError\n"
        "try:\n    check_names(sys.argv[1], 'lookup', 'transformers')\n"
        "except AdviceError as error:\n    print(error, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "other.gguf")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "llama.cpp reads it" in printed
    assert printed.endswith("False\n")


def test_a_llama_whose_queries_stay_in_the_order_of_the_file_is_another():
    """The wrong twin's queries and keys have the two halves that turn together side by side."""
    model = copy.deepcopy(tiny_model("llama"))
    for layer in model.model.layers:
        for part, heads in (layer.self_attn.q_proj, 4), (layer.self_attn.k_proj, 2):
            halves = part.weight.data.unflatten(0, (heads, 2, -1))
            part.weight.data = halves.transpose(1, 2).reshape(part.weight.shape)
    wrong = differing(model, tiny_file("llama"))
    assert wrong
    assert all(name.endswith(("q_proj.weight", "k_proj.weight")) for name in wrong)


def test_a_folder_is_made_once_with_tokenizer_and_template(tmp_path):
    """What a kill has left goes, and what is being written stays."""
    old, young = tmp_path / "models" / ".new-old", tmp_path / "models" / ".new-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    target, _, tokenizer = load_pair()
    path = pair_files("q8_0")[0]
    folder = folder_of(path, tmp_path, torch.float32)
    assert (old.exists(), young.exists()) == (False, True)
    ours, theirs = target.lm_head.weight.detach().float(), load_model(str(folder)).lm_head.weight.detach()
    assert 0 < (ours - theirs).abs().max() < 0.01 * ours.abs().max()
    assert load_tokenizer(str(folder)).get_vocab() == tokenizer.get_vocab()
    written = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert folder_of(path, tmp_path, torch.float32) == folder
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == written


@pytest.fixture
def reduced(tmp_path) -> Path:
    """A draft with a part of the vocabulary, and so with a list in place of a tokenizer."""
    model = copy.deepcopy(tiny_model("llama", vocab_size=4))
    model.config.target_ids = [3, 1, 7]
    to_gguf.write(model, tmp_path / "draft.gguf")
    return tmp_path / "draft.gguf"


def test_a_full_disk_is_advice_and_leaves_nothing(reduced, tmp_path):
    def full(folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(AdviceError, match=r"No space left on device.*make room"):
        cached_model(reduced, tmp_path, "bfloat16", full)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_folder_that_another_process_has_made_meanwhile_is_taken(reduced, tmp_path):
    def slow(folder: Path) -> None:
        folder_of(reduced, tmp_path)
        convert(reduced, folder, torch.bfloat16)

    folder = cached_model(reduced, tmp_path, "bfloat16", slow)
    assert folder == folder_of(reduced, tmp_path)
    assert load_model(str(folder)).config.target_ids == [3, 1, 7]
    assert not (folder / "tokenizer.json").exists()
    assert len(list((tmp_path / "models").iterdir())) == 1


def test_what_only_llama_cpp_reads_is_advice(tmp_path, monkeypatch):
    windows, settings = window_file(), to_gguf.add_settings

    def scaled(writer, config):
        settings(writer, config)
        writer.add_rope_scaling_type(to_gguf.gguf.RopeScalingType.YARN)

    monkeypatch.setattr(to_gguf, "add_settings", scaled)
    to_gguf.write(tiny_model("qwen2"), tmp_path / "scaled.gguf")
    (tmp_path / "text.gguf").write_text("no model")
    (tmp_path / "odd.gguf").write_bytes(tiny_file("llama").read_bytes().replace(b"blk.1.attn_q", b"blk.1.attn_x"))
    for path, message in (
        (windows, "gemma3.*stating tokenizer 'no_vocab'.*; llama.cpp reads it"),
        (tmp_path / "scaled.gguf", "scaled positions"),
        (tmp_path / "none.gguf", "cannot read the model"),
        (tmp_path / "text.gguf", "is no GGUF file"),
        (tiny_file("llama"), "no tokenizer"),
        (tmp_path / "odd.gguf", r"(has|lacks) a tensor 'blk.1.attn_.\.weight', which only llama.cpp reads"),
    ):
        with pytest.raises(AdviceError, match=message):
            folder_of(path, tmp_path)
