"""Every file of a model folder missing, empty, cut, garbage or of another model: one line that says what to do."""

import json
import shutil
from pathlib import Path

import jaxtyping
import pytest
import torch
from multidraft_research.cli.pretrained import load_pretrained as load
from safetensors.torch import load_file, save_file
from tiny import CONFIGURATIONS
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from multidraft.cli.main import app
from multidraft.errors import AdviceError

SETTINGS = {**CONFIGURATIONS["llama"][1], "num_hidden_layers": 3, "tie_word_embeddings": True}
FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
HARMLESS = {  # what the folder does as well without, or what says nothing
    ("generation_config.json", kind) for kind in ("missing", "empty object", "another model's")
} | {("tokenizer_config.json", kind) for kind in ("missing", "empty object", "another model's")}


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    """Type hints are not checked, as for a user; all other tests check them."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A tiny model with random weights and its tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "whole"
    save(folder, SETTINGS, 61)
    save(folder.parent / "other", SETTINGS | {"vocab_size": 200, "hidden_size": 64}, 200)
    return folder


def save(folder: Path, settings: dict, pieces: int) -> None:
    """Write a random model with a tokenizer of so many pieces."""
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**settings, bos_token_id=0, eos_token_id=0)).save_pretrained(folder)
    words = {"[UNK]": 0, **{f"{pieces}-{i}": i for i in range(1, pieces)}}
    tokenizer = Tokenizer(models.WordLevel(words, "[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)


GARBAGE = bytes(torch.randint(256, (3000,), generator=torch.Generator().manual_seed(0)).tolist())
SPOILT = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "cut at the end": lambda content: content[:-3],
    "garbage": lambda content: GARBAGE,
    "a list": lambda content: b"[]",
    "no object": lambda content: b"null",
    "empty object": lambda content: b"{}",
    "a web page": lambda content: b"<html>not found</html>",
    "a pointer of git": lambda content: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n",
}
KINDS = [*SPOILT, "missing", "another model's"]
FAULTS = [(file, kind) for file in FILES for kind in KINDS if (file, kind) not in HARMLESS]
FAULTS = [(*fault, ("target", "draft")[number % 2]) for number, fault in enumerate(FAULTS)]


def broken(whole: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(whole, tmp_path / "broken"))


def refused(target: Path, draft: Path) -> str:
    """The one line that loading the pair ends with."""
    with pytest.raises(AdviceError) as caught:
        load(str(target), str(draft))
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 900
    assert ";" in line
    return line


@pytest.mark.parametrize(("file", "kind", "role"), FAULTS)
def test_files(whole, tmp_path, file, kind, role):
    folder = broken(whole, tmp_path)
    path = folder / file
    if kind in SPOILT:
        path.write_bytes(SPOILT[kind](path.read_bytes()))
    elif kind == "missing":
        path.unlink()
    else:
        shutil.copy(whole.parent / "other" / file, path)
    line = refused(folder, whole) if role == "target" else refused(whole, folder)
    assert "broken" in line or "differ" in line


CONFIG = {
    "hidden_size": [0, -1, 31, 64, "x", None, [32]],
    "intermediate_size": [0, 31, "x"],
    "num_hidden_layers": [0, 2, 4, -1, "x", 1.5],
    "num_attention_heads": [0, 3, 8, "x"],
    "num_key_value_heads": [0, 1, 3, "x"],
    "head_dim": [0, 7, "x"],
    "vocab_size": [0, 60, 62, 128256, "x", None],
    "hidden_act": ["nope", 3],
    "rms_norm_eps": ["x"],
    "rope_parameters": ["x", {"rope_type": "nope", "rope_theta": 1e4}, {"rope_type": "default", "rope_theta": "x"}],
    "max_position_embeddings": ["x"],
    "model_type": ["nope", "gpt2", "bert", "mamba", None],
    "dtype": ["nope", "int8", "complex64", 3],
    "eos_token_id": ["x", {"a": 1}],
    "quantization_config": ["x"],
    "attn_implementation": ["nope"],
}
PLACES = [(name, value) for name, values in CONFIG.items() for value in values]


@pytest.mark.parametrize(("name", "value"), PLACES, ids=str)
def test_configurations(whole, tmp_path, name, value):
    folder = broken(whole, tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    refused(whole, folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("a layer is missing", r"lacks weights .*: model\.layers\.2\..* and \d+ more"),
        ("a norm is missing", r"lacks weights .*: model\.norm\.weight"),
        ("a layer too many", r"no place for: model\.layers\.3\..*"),
        ("another shape", "shape|size mismatch"),
        ("not numbers", "that are no numbers"),
        ("other names", "lacks weights"),
        ("nothing", "lacks weights|cannot load"),
    ],
)
def test_checkpoints(whole, tmp_path, change, message):
    folder = broken(whole, tmp_path)
    path = folder / "model.safetensors"
    weights = load_file(path)
    last = {name: value for name, value in weights.items() if "layers.2" in name}
    changed = {
        "a layer is missing": {name: value for name, value in weights.items() if name not in last},
        "a norm is missing": {name: value for name, value in weights.items() if name != "model.norm.weight"},
        "a layer too many": weights | {name.replace("layers.2", "layers.3"): value + 0 for name, value in last.items()},
        "another shape": weights | {"model.norm.weight": torch.ones(31)},
        "not numbers": {name: torch.full_like(value, torch.nan) for name, value in weights.items()},
        "other names": {f"x.{name}": value for name, value in weights.items()},
        "nothing": {},
    }[change]
    save_file(changed, path, {"format": "pt"})
    with pytest.raises(AdviceError, match=message):
        load(str(folder), str(whole))


def test_a_whole_folder_loads(whole):
    """With tied weights, which no checkpoint has twice."""
    pair = load(str(whole), str(whole))
    assert "lm_head.weight" not in load_file(whole / "model.safetensors")
    assert pair.target.config.vocab_size == len(pair.tokenizer) == 61


def test_the_embedded_pair_fills_up_texts():
    pair = load(None, None)
    assert pair.target.config.vocab_size == 4096
    assert pair.tokenizer(["a b c", "a"], padding=True, return_tensors="pt").input_ids.shape[0] == 2


@pytest.mark.parametrize("command", [["acceptance"], ["generate", "--prompt", "a"]])
@pytest.mark.parametrize("kind", ["cut weights", "another vocabulary", "another with the target's tokenizer"])
def test_the_command_line_ends_with_one_line(whole, tmp_path, command, kind):
    folder = Path(shutil.copytree(whole.parent / ("other" if "another" in kind else "whole"), tmp_path / "draft"))
    if kind == "cut weights":
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-3])
    for name in ("tokenizer.json", "tokenizer_config.json") if "with" in kind else ():
        shutil.copy(whole / name, folder / name)
    call = [command[0], "--target", whole, "--draft", folder, *command[1:]]
    result = CliRunner().invoke(app, list(map(str, call)))
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("multidraft: ")
