"""A GGUF file as transformers reads it: every weight in its place, kept whole or not at all."""

import copy
import errno
import os
from pathlib import Path

import pytest
import torch
from ggufs import pair_files, tiny_file, to_gguf, window_file
from tiny import tiny_model
from transformers import PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.models.gguf import to_hugging_face
from multidraft.models.gguf.to_hugging_face import folder_of, read
from multidraft.models.loading import load_model, load_tokenizer
from multidraft.zoo import load_pair


def differing(model: PreTrainedModel, path: Path) -> list[str]:
    """The weights of a model that a file does not give back."""
    config, weights = read(path, torch.float32)
    assert config.model_type == model.config.model_type
    ours = {name: w for name, w in model.state_dict().items() if name in weights or name != "lm_head.weight"}
    assert ours.keys() == weights.keys()
    return [name for name in ours if not ours[name].equal(weights[name])]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_every_weight_comes_back(family):
    assert differing(tiny_model(family), tiny_file(family)) == []


def test_a_llama_whose_queries_stay_in_the_order_of_the_file_is_another(monkeypatch):
    monkeypatch.setattr(to_hugging_face, "in_halves", lambda weights, config: None)
    wrong = differing(tiny_model("llama"), tiny_file("llama"))
    assert wrong
    assert all(name.endswith(("q_proj.weight", "k_proj.weight")) for name in wrong)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_the_configuration_gives_the_same_logits(family):
    model, (config, weights) = tiny_model(family), read(tiny_file(family), torch.float32)
    again = type(model)(config).eval()
    again.load_state_dict(weights, strict=False)
    tokens = torch.arange(12)[None]
    with torch.inference_mode():
        assert again(tokens).logits.equal(model(tokens).logits)


def test_a_folder_is_made_once_with_tokenizer_and_template(tmp_path, monkeypatch):
    target, _, tokenizer = load_pair()
    path = pair_files("q8_0")[0]
    folder = folder_of(path, tmp_path, torch.float32)
    model = load_model(str(folder))
    ours, theirs = target.lm_head.weight.detach().float(), model.lm_head.weight.detach()
    assert 0 < (ours - theirs).abs().max() < 0.01 * ours.abs().max()
    assert load_tokenizer(str(folder)).get_vocab() == tokenizer.get_vocab()
    monkeypatch.setattr(to_hugging_face, "convert", None)
    assert folder_of(path, tmp_path, torch.float32) == folder


def test_a_full_disk_is_advice_and_leaves_nothing(tmp_path, monkeypatch):
    def full(weights, path, metadata):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(to_hugging_face, "save_file", full)
    with pytest.raises(AdviceError, match=r"No space left on device.*make room"):
        folder_of(pair_files("f32")[1], tmp_path)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_folder_that_another_process_has_made_meanwhile_is_taken(tmp_path, monkeypatch):
    path = pair_files("f32")[1]
    convert = to_hugging_face.convert

    def slow(path, folder, dtype):
        monkeypatch.setattr(to_hugging_face, "convert", convert)
        folder_of(path, tmp_path, dtype)
        convert(path, folder, dtype)

    monkeypatch.setattr(to_hugging_face, "convert", slow)
    assert load_model(str(folder_of(path, tmp_path)))
    assert len(list((tmp_path / "models").iterdir())) == 1


def test_what_a_kill_has_left_goes_and_what_is_being_written_stays(tmp_path):
    old, young = tmp_path / "models" / ".new-old", tmp_path / "models" / ".new-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    folder_of(pair_files("f32")[1], tmp_path)
    assert (old.exists(), young.exists()) == (False, True)


def test_a_draft_with_a_part_of_the_vocabulary_has_a_list_in_place_of_a_tokenizer(tmp_path):
    model = copy.deepcopy(tiny_model("llama", vocab_size=4))
    model.config.target_ids = [3, 1, 7]
    to_gguf.write(model, tmp_path / "draft.gguf")
    folder = folder_of(tmp_path / "draft.gguf", tmp_path)
    assert load_model(str(folder)).config.target_ids == [3, 1, 7]
    assert not (folder / "tokenizer.json").exists()


def test_what_only_llama_cpp_reads_is_advice(tmp_path):
    with pytest.raises(AdviceError, match=r"family 'gemma3'.*only llama.cpp"):
        folder_of(window_file(), tmp_path)
    with pytest.raises(AdviceError, match="cannot read the model"):
        folder_of(tmp_path / "none.gguf", tmp_path)
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(AdviceError, match="no whole GGUF file"):
        folder_of(tmp_path / "text.gguf", tmp_path)
    with pytest.raises(AdviceError, match="no tokenizer"):
        folder_of(tiny_file("llama"), tmp_path)


def test_scaled_positions_are_advice(tmp_path, monkeypatch):
    settings = to_gguf.add_settings

    def scaled(writer, config):
        settings(writer, config)
        writer.add_rope_scaling_type(to_gguf.gguf.RopeScalingType.YARN)

    monkeypatch.setattr(to_gguf, "add_settings", scaled)
    to_gguf.write(tiny_model("qwen2"), tmp_path / "scaled.gguf")
    with pytest.raises(AdviceError, match="scaled positions"):
        folder_of(tmp_path / "scaled.gguf", tmp_path)
