"""Captures that were spoilt, with checksums that are right: they can be read, or are refused in one line."""

import json
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import psutil
import pytest
import torch
from captures import keep
from multidraft_research.captures.folder import MANIFEST, Capture
from multidraft_research.studies.acceptance import random_pairs
from safetensors.torch import load_file, save
from spoiling import TENSORS, WRONG, loads_or_says_why, places, spoilt, spoilt_tensors
from torch import Tensor

from multidraft.errors import AdviceError


@pytest.fixture(autouse=True)
def no_hints(unchecked: None) -> None:
    """Type hints are not checked, as for a user."""


class Kept:
    """A capture of one prompt, whose manifest and shard are written anew with checksums that are right."""

    def __init__(self, folder: Path, top_k: int | None):
        self.folder = keep(folder, random_pairs(3, 10, 0), top_k=top_k)
        lines = (folder / MANIFEST).read_text().splitlines()
        self.first, self.entry = (json.loads(line) for line in lines)
        self.tensors = {name: value.clone() for name, value in load_file(folder / self.entry["file"]).items()}

    def write(self, first: Any, entry: Any) -> None:
        (self.folder / MANIFEST).write_text(f"{json.dumps(first)}\n{json.dumps(entry)}\n")

    def write_tensors(self, tensors: dict[str, Tensor]) -> None:
        content = save(tensors)
        (self.folder / self.entry["file"]).write_bytes(content)
        self.write(self.first, self.entry | {"sha256": sha256(content).hexdigest(), "bytes": len(content)})

    def loads(self, what: object) -> bool:
        return loads_or_says_why(lambda: Capture.open(self.folder).recording(), f"{self.folder} {what}")


def check(kept: Kept, one_in: int) -> list[bool]:
    """Whether captures load that are spoilt in one field; of all cases one in so many."""
    lines, loaded = {"first": kept.first, "entry": kept.entry}, []
    for place in places(lines):
        for name, wrong in WRONG.items():
            if len(place) > 1 and crc32(f"{place}{name}".encode()) % one_in == 0:
                kept.write(**spoilt(lines, place, wrong))
                loaded.append(kept.loads((place, name)))
    return loaded


def check_tensors(kept: Kept, one_in: int) -> list[bool]:
    """The same with tensors."""
    cases = [(name, kind) for name in kept.tensors for kind in TENSORS]
    loaded = []
    for name, kind in cases:
        if crc32(f"{name}{kind}".encode()) % one_in == 0:
            kept.write_tensors(spoilt_tensors(kept.tensors, name, kind))
            loaded.append(kept.loads((name, kind)))
    return loaded


@pytest.mark.parametrize("top_k", [None, 4])
@pytest.mark.parametrize("one_in", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_spoilt_captures(top_k: int | None, one_in: int, tmp_path: Path) -> None:
    kept = Kept(tmp_path, top_k)
    assert kept.loads("as it is")
    for outcomes in (check(kept, one_in), check_tensors(kept, one_in)):
        assert outcomes
        assert not all(outcomes)


def test_a_shard_has_what_its_manifest_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(tmp_path, 4)
    twice = kept.tensors["kept"].clone()
    twice[0, 1] = twice[0, 0]
    for name, value, message in (
        ("kept", twice, "kept that is not in order"),
        ("tokens", torch.tensor([0, 1, 10]), "other tokens than the 10"),
        ("target", kept.tensors["target"].int(), "holds numbers of dtype I32"),
        ("draft_rest", kept.tensors["draft_rest"][:2], r"is \(2,\) and should be \(3,\)"),
    ):
        kept.write_tensors(kept.tensors | {name: value})
        with pytest.raises(AdviceError, match=message):
            Capture.open(tmp_path).shard(0)
    kept.write_tensors(kept.tensors)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=100))
    with pytest.raises(AdviceError, match="3 positions of 10 tokens, which take up to"):
        Capture.open(tmp_path).shard(0)


@pytest.mark.parametrize("name", ["..", "/etc/passwd", "a/b.safetensors", "00000.safetensors\n", ".safetensors"])
def test_shards_lie_in_the_capture_s_own_folder(name: str, tmp_path: Path) -> None:
    kept = Kept(tmp_path, None)
    kept.write(kept.first, kept.entry | {"file": name})
    with pytest.raises(AdviceError, match="should be the name of a file of safetensors"):
        Capture.open(tmp_path)


def test_a_shard_that_became_a_device_is_not_read(tmp_path: Path) -> None:
    kept = Kept(tmp_path, None)
    (tmp_path / kept.entry["file"]).unlink()
    (tmp_path / kept.entry["file"]).symlink_to("/dev/zero")
    with pytest.raises(AdviceError, match="another checksum"):
        Capture.open(tmp_path).shard(0)
