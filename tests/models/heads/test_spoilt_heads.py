"""Heads whose files are spoilt: whatever a field or a tensor holds, they load and are right, or a line says why not."""

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch
from heads import module_of
from safetensors.torch import load_file, save_file
from spoiling import TENSORS, WRONG, loads_or_says_why, places, spoilt, spoilt_tensors
from tiny import VOCABULARY, tiny_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import multidraft as md
from multidraft.errors import AdviceError
from multidraft.models.heads.drafters import head
from multidraft.models.heads.head_files import load_head
from multidraft.models.heads.saving import save_head
from multidraft.models.huggingface.loading import settings_in

REFERENCE = Path(__file__).parent / "reference"
REDUCED, BLOCKS, WHOLE, MEDUSA = "eagle3 reduced, two layers", "dflash reduced, from anchor", "eagle3", "medusa"
KINDS = {REDUCED: "eagle3", BLOCKS: "dflash", MEDUSA: "medusa", "first published": "dflash"}
MEMORY = """
import json, sys
from transformers import LlamaConfig, LlamaForCausalLM
from multidraft.io import tensors
from multidraft.models.heads.head_files import load_head

def peak():  # of this program alone, not of the one that it was forked from
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

small, large, copies = sys.argv[1:]
target = LlamaForCausalLM(LlamaConfig(**json.loads(open(f"{large}/target.json").read()))).eval()
if copies == "copies":
    right = tensors.of_part
    def wrong(file, name, part):
        stored = right(file, name, part)
        return tensors.Stored(stored.dtype, stored.shape, lambda: stored.read().clone())
    tensors.of_part = wrong
load_head(__import__("pathlib").Path(small), target)
before = peak()
load_head(__import__("pathlib").Path(large), target)
print(peak() - before)
"""


@pytest.fixture(autouse=True)
def no_hints(unchecked: None) -> None:
    """Type hints are not checked, as for a user."""


@cache
def small_target() -> LlamaForCausalLM:
    """The target of the heads in `reference`."""
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, num_hidden_layers=4, **shape, eos_token_id=None)).eval()


class Files:
    """A head's folder, its target, and what to make of the folder again and again."""

    def __init__(self, name: str, folder: Path):
        self.folder, self.name = folder, f"{KINDS.get(name, name)}:{folder}"
        if name == "first published":
            self.target: Any = small_target()
            source = REFERENCE / "dflash_original"
            self.settings, self.tensors = json.loads((source / "config.json").read_text()), weights_in(source)
        else:
            self.target = tiny_model("llama")
            save_head(module_of(name), folder, "some/target", ["LlamaForCausalLM"])
            self.settings, self.tensors = json.loads((folder / "config.json").read_text()), weights_in(folder)
        folder.mkdir(exist_ok=True)
        self.write(self.settings, self.tensors)

    def write(self, settings: Any, tensors: dict[str, Tensor]) -> None:
        (self.folder / "config.json").write_text(json.dumps(settings))
        save_file(tensors, self.folder / "model.safetensors")

    def write_settings(self, settings: Any) -> None:
        (self.folder / "config.json").write_text(json.dumps(settings))

    def loads(self, what: object) -> bool:
        """Whether it loads, and is then still lossless."""
        loaded: list[Any] = []
        if not loads_or_says_why(lambda: loaded.append(head(self.name, self.target)), f"{self.name} {what}"):
            return False
        how: dict[str, Any] = {"max_new_tokens": 4, "temperature": 0}
        (plain,), _ = md.generate(self.target, None, [[1, 2, 3]], **how)
        (tokens,), _ = md.generate(self.target, loaded[0], [[1, 2, 3]], tree="2x1", **how)
        assert tokens.tolist() == plain.tolist(), what
        return True


def weights_in(folder: Path) -> dict[str, Tensor]:
    """In memory, so that the file can be written anew."""
    return {name: value.clone() for name, value in load_file(folder / "model.safetensors").items()}


def sample_of(cases: Iterable[Any], one_in: int) -> list[Any]:
    """A part of cases, which is always the same."""
    return [case for case in cases if crc32(repr(case).encode()) % one_in == 0]


def fields(files: Files) -> list[tuple[tuple[Any, ...], str]]:
    """Every field that is there, and every one that may be, with every wrong value."""
    missing_fields = [(name,) for name in OPTIONAL if name not in files.settings]
    return [(place, wrong) for place in [*places(files.settings), *missing_fields] for wrong in WRONG]


OPTIONAL = ["eagle_config", "dflash_config", "logit_scale", "num_aux_hidden_states", "num_heads", "rope_scaling"]
OPTIONAL += ["medusa_num_heads", "target_layer_ids", "input_embedding_scale", "truncated_vocab_size", "head_dim"]


def check_fields(files: Files, cases: list[tuple[tuple[Any, ...], str]]) -> tuple[int, int]:
    """How many of the files load, and how many do not."""
    loaded = 0
    for place, wrong in cases:
        settings = dict(files.settings)
        if place[0] not in settings:
            settings[place[0]] = None
        files.write_settings(spoilt(settings, place, WRONG[wrong]))
        loaded += files.loads((place, wrong))
    return loaded, len(cases) - loaded


def check_tensors(files: Files, cases: list[tuple[str, str]]) -> tuple[int, int]:
    """The same with tensors."""
    loaded = 0
    for name, kind in cases:
        files.write(files.settings, spoilt_tensors(files.tensors, name, kind))
        loaded += files.loads((name, kind))
    return loaded, len(cases) - loaded


@pytest.mark.parametrize("name", KINDS)
def test_some_spoilt_fields_and_tensors(name: str, tmp_path: Path) -> None:
    files = Files(name, tmp_path)
    assert files.loads("as it is")
    assert min(check_fields(files, sample_of(fields(files), 60))) > 0
    files.write_settings(files.settings)
    assert check_tensors(files, sample_of([(name, kind) for name in files.tensors for kind in TENSORS], 24))[1] > 0


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", KINDS)
def test_every_field_with_every_wrong_value(name: str, wrong: str, tmp_path: Path) -> None:
    files = Files(name, tmp_path)
    refused = check_fields(files, [case for case in fields(files) if case[1] == wrong])[1]
    assert refused > 0 or wrong == "null" or (name, wrong) == ("medusa", "missing")  # Medusa's weights say all


@pytest.mark.slow
@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("name", KINDS)
def test_every_tensor_in_every_wrong_form(name: str, kind: str, tmp_path: Path) -> None:
    files = Files(name, tmp_path)
    harmless = kind in ("all alike",)
    assert check_tensors(files, [(tensor, kind) for tensor in files.tensors])[1] > 0 or harmless


# What columns stand for

BAD_OFFSETS = {
    "twice": (lambda ids: ids.index_fill(0, torch.tensor([3]), int(ids[4])), r"leads to token \d+ more than once"),
    "below zero": (lambda ids: ids.index_fill(0, torch.tensor([0]), -1), "leads to token -1 of a target with 61"),
    "beyond": (lambda ids: ids.index_fill(0, torch.tensor([5]), VOCABULARY), "leads to token 61 of a target with 61"),
    "floats": (lambda ids: ids.double(), "holds numbers of dtype F64"),
    "a table": (lambda ids: ids[None], r"is \(1, 20\) and should be \(any,\)"),
    "too many": (lambda ids: torch.arange(VOCABULARY + 1), "has 62 of 61"),
    "none": (lambda ids: ids[:0], "has 0 of 61"),
}


@pytest.mark.parametrize("key", ["d2t", "token_map"])
@pytest.mark.parametrize("kind", BAD_OFFSETS)
def test_columns_that_do_not_stand_for_tokens_of_their_own_are_refused(kind: str, key: str, tmp_path: Path) -> None:
    """A token that two columns lead to would be drafted by both and counted once: the output's law is another."""
    files = Files(REDUCED, tmp_path)
    offsets = files.tensors.pop("d2t")
    change, message = BAD_OFFSETS[kind]
    ids = change(offsets + torch.arange(len(offsets)))
    stored_ids = ids if key == "token_map" or ids.ndim > 1 else ids - torch.arange(len(ids))
    files.write(files.settings, files.tensors | {key: stored_ids})
    with pytest.raises(AdviceError, match=f"{key} of the head .* {message}"):
        head(files.name, files.target)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_whole_vocabulary_may_have_offsets_of_zero(dtype: torch.dtype, tmp_path: Path) -> None:
    files = Files(WHOLE, tmp_path)
    plain = load_head(tmp_path, files.target)
    files.write(files.settings, files.tensors | {"d2t": torch.zeros(VOCABULARY, dtype=dtype)})
    head = load_head(tmp_path, files.target)
    assert (head.ids, head.settings.drafted) == (None, VOCABULARY)
    assert head.lm_head.weight.equal(plain.lm_head.weight)
    turned = torch.arange(VOCABULARY).roll(1) - torch.arange(VOCABULARY)
    files.write(files.settings, files.tensors | {"d2t": turned})
    with pytest.raises(AdviceError, match="puts the whole vocabulary into another order"):
        load_head(tmp_path, files.target)


# Sizes and dtypes


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (BLOCKS, {"block_size": 10**9}, "block_size is 1000000000 and should be a whole number from 1 to 256"),
        (BLOCKS, {"block_size": 1, "sample_from_anchor": False}, "of which the known token takes all"),
        (BLOCKS, {"mask_token_id": VOCABULARY}, "has the mask token 61 and this one has 61"),
        (BLOCKS, {"aux_hidden_state_layer_ids": [1, -1]}, r"aux_hidden_state_layer_ids\[1\] is -1"),
        (MEDUSA, {"medusa_num_heads": 10**6}, "medusa_num_heads is 1000000 and should be a whole number from 1 to 64"),
        (REDUCED, {"fc_norm": "false"}, "fc_norm is 'false' and should be true or false"),
        (REDUCED, {"logit_scale": float("nan")}, "logit_scale is nan and should be a number"),
        (REDUCED, {"eagle_config": [1]}, r"eagle_config is \[1\] and should be an object"),
        (REDUCED, {"architectures": 5}, "architectures is 5 and should be a list"),
    ],
)
def test_settings_out_of_range_are_named(name: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    files = Files(name, tmp_path)
    files.write_settings(files.settings | change)
    with pytest.raises(AdviceError, match=rf"{message}.*; (get|give)"):
        head(files.name, files.target)


def test_a_configuration_that_has_no_end_is_not_read(tmp_path: Path) -> None:
    files = Files(WHOLE, tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").symlink_to("/dev/zero")
    with pytest.raises(AdviceError, match=r"no config\.json"):  # a device is no file
        head(files.name, files.target)
    with pytest.raises(AdviceError, match="holds no JSON object"):
        settings_in(tmp_path / "config.json")


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool, torch.complex64])
def test_weights_are_floats(dtype: torch.dtype, tmp_path: Path) -> None:
    files = Files(WHOLE, tmp_path)
    files.write(files.settings, files.tensors | {"fc.weight": files.tensors["fc.weight"].to(dtype)})
    with pytest.raises(AdviceError, match=r"fc\.weight of the head .* holds numbers of dtype"):
        head(files.name, files.target)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_weights_are_finite_in_the_dtype_that_they_get(number: float, tmp_path: Path) -> None:
    files = Files(WHOLE, tmp_path)
    weight = files.tensors["norm.weight"].double()
    weight[3] = number
    files.write(files.settings, files.tensors | {"norm.weight": weight})
    with pytest.raises(AdviceError, match=r"norm\.weight of the head .* no finite numbers in torch\.float32"):
        head(files.name, files.target)


def test_pickled_weights_are_held_against_the_configuration_too(tmp_path: Path) -> None:
    files = Files(WHOLE, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    binary = tmp_path / "pytorch_model.bin"
    for content, message in (
        (files.tensors, None),
        (files.tensors | {"norm.weight": "text"}, "'norm.weight' is no tensor"),
        (files.tensors | {"norm.weight": torch.zeros(1).expand(10**9)}, r"norm\.weight .* is \(1000000000,\)"),
        (files.tensors | {"norm.weight": torch.eye(32).to_sparse()}, "'norm.weight' is no tensor"),
        ([1], "cannot read the weights"),
    ):
        torch.save(content, binary)
        if message is None:
            assert load_head(tmp_path, files.target).ids is None
            continue
        with pytest.raises(AdviceError, match=message):
            load_head(tmp_path, files.target)
    binary.write_bytes(b"nothing")
    with pytest.raises(AdviceError, match=re.escape(str(binary))):
        load_head(tmp_path, files.target)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux alone says what a process took at most")
@pytest.mark.parametrize("copies", ["none", "copies"])
def test_a_head_takes_no_more_than_one_and_a_half_times_its_file(copies: str, tmp_path: Path) -> None:
    """Measured in a process of its own; with a copy of every weight it takes twice as much, and that is seen."""
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    shape |= {"num_hidden_layers": 2, "vocab_size": VOCABULARY}
    sizes = {}
    for name, inner in (("small", 48), ("large", 2**20)):
        files = Files(WHOLE, tmp_path / name)
        settings = spoilt(files.settings, ("transformer_layer_config", "intermediate_size"), inner)
        names = {f"layers.0.mlp.{part}_proj.weight": (inner, 32) for part in ("gate", "up")}
        wide = {key: torch.ones(size) for key, size in names.items()}
        files.write(settings, files.tensors | wide | {"layers.0.mlp.down_proj.weight": torch.ones(32, inner)})
        (tmp_path / name / "target.json").write_text(json.dumps(shape))
        sizes[name] = (tmp_path / name / "model.safetensors").stat().st_size
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "small"), str(tmp_path / "large"), copies]
    taken = int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1])
    assert (taken < 1.5 * sizes["large"]) == (copies == "none"), taken / sizes["large"]
