"""Headers of GGUF files, spoilt number by number and cut byte by byte: they are read, or one line says why not."""

import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from spoiling import loads_or_says_why
from tiny import tiny_model

from multidraft.errors import AdviceError
from multidraft.models.gguf import header
from multidraft.models.gguf.header import Cursor, check, whole_numbers
from multidraft.models.huggingface.from_gguf import read as read_for_transformers
from multidraft.zoo.smollm2 import DRAFT

gguf: Any = pytest.importorskip("gguf")
IDS = [3, 1, 7, 2**31 - 1]
NAME = b"multidraft.target_ids"
WRONG = [
    0,
    1,
    2,
    4,
    5,
    8,
    9,
    11,
    13,
    100,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**60,
    2**63 - 1,
    2**63,
    2**64 - 1,
]
ENOUGH = 500_000  # bytes that Python itself may take for a header of two kilobytes


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small file with metadata of every kind."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    for name, kind in (("uint8", 3), ("int64", -3), ("float32", 0.5), ("bool", True), ("string", "text")):
        getattr(writer, f"add_{name}")(f"a.{name}", kind)
    writer.add_array("multidraft.target_ids", IDS)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", ""])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5])
    writer.add_tensor("token_embd.weight", np.ones((4, 8), np.float32))
    writer.add_tensor("norm.weight", np.ones(8, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def numbers(path: Path) -> list[tuple[int, str]]:
    """Where every number of a header is, and of what type."""
    places, right = list[tuple[int, str]](), Cursor.number

    def noted(cursor: Cursor, code: str) -> int | float:
        places.append((cursor.place, code))
        return right(cursor, code)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Cursor, "number", noted)
        check(path)
    return places


def spoilt(content: bytes, path: Path) -> Iterator[tuple[str, bytes]]:
    """The file with one number changed, and cut at every byte."""
    path.write_bytes(content)
    for place, code in numbers(path):
        size = struct.calcsize(code)
        for wrong in WRONG:
            changed = (wrong % 256**size).to_bytes(size, "little")
            yield f"{code} at {place} is {wrong}", content[:place] + changed + content[place + size :]
    for end in range(len(content)):
        yield f"cut at {end}", content[:end]


def reads(path: Path, what: str) -> bool:
    """Whether a header can be read, by us and then by the package gguf, with little memory."""
    tracemalloc.start()
    is_read = loads_or_says_why(lambda: (check(path), whole_numbers(path, NAME)), what)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < ENOUGH, f"{what}: {peak:,} bytes"
    return is_read


def test_a_header_says_what_the_package_gguf_says(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "small.gguf").write_bytes(content)
    assert whole_numbers(tmp_path / "small.gguf", NAME) == IDS
    assert whole_numbers(tmp_path / "small.gguf", b"tokenizer.ggml.scores") is None
    assert whole_numbers(tmp_path / "small.gguf", b"none") is None
    assert whole_numbers(DRAFT, NAME) == gguf.GGUFReader(DRAFT).get_field(NAME.decode()).contents()


def test_some_spoilt_headers(content: bytes, tmp_path: Path) -> None:
    outcomes = []
    for what, changed in spoilt(content, tmp_path / "a.gguf"):
        if crc32(what.encode()) % 48 == 0:
            (tmp_path / "a.gguf").write_bytes(changed)
            outcomes.append(reads(tmp_path / "a.gguf", what))
    assert len(outcomes) > 25
    assert {*outcomes} == {True, False}


@pytest.mark.slow
def test_every_spoilt_header(content: bytes, tmp_path: Path) -> None:
    for what, changed in spoilt(content, tmp_path / "a.gguf"):
        (tmp_path / "a.gguf").write_bytes(changed)
        reads(tmp_path / "a.gguf", what)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"GGUF\3\0\0\0", b"GGUF\1\0\0\0", "it is of version 1"),
        (b"norm.weight", b"norm.weigh\xff", None),
        (b"general.alignment\4\0\0\0\x40", b"general.alignment\4\0\0\0\x41", "tensors are aligned to 65"),
        (b"a.int64", b"a.uint8", "b'a.uint8' is twice there"),
        (b"norm.weight\1\0\0\0", b"norm.weight\5\0\0\0", "a tensor has 5 sizes"),
        (
            b"norm.weight\1\0\0\0\x08\0",
            b"norm.weight\1\0\0\0\0\xff",
            "'norm.weight' data is not within the file bounds",
        ),
        (struct.pack("<IIQ", 9, 5, 4), struct.pack("<IIQ", 9, 5, 2**62), f"{2**62} numbers do not fit into it"),
        (struct.pack("<IIQ", 9, 8, 3), struct.pack("<IIQ", 9, 9, 3), "there is no type 9"),
    ],
)
def test_what_is_wrong_is_said(content: bytes, old: bytes, new: bytes, message: str | None, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    if message is None:
        return check(path)
    with pytest.raises(AdviceError, match=f"{message}.*; get the file again"):
        check(path)


def test_a_list_of_tokens_has_a_largest_length(content: bytes, tmp_path: Path) -> None:
    """The list is in the file, which has a hole there, and is not read."""
    count, array = header.MAX_TOKENS + 1, struct.pack("<IIQ", 9, 5, 4)
    before, after = content.split(array)
    with (tmp_path / "a.gguf").open("wb") as file:
        file.write(before + struct.pack("<IIQ", 9, 5, count))
        file.seek(4 * count, 1)
        file.write(after[4 * len(IDS) :])
    with pytest.raises(AdviceError, match=f"target_ids has {count} numbers"):
        whole_numbers(tmp_path / "a.gguf", NAME)


# What transformers is told of such a file

KEYS = ["block_count", "embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv"]
KEYS += ["attention.layer_norm_rms_epsilon", "rope.freq_base", "context_length", "attention.key_length"]
VALUES: list[Any] = ["8", True, 0, -1, 3, 2**31, 2**62, 0.5, float("nan"), float("inf"), [1, 2], None]


def write_llama(path: Path, key: str | None = None, value: Any = None) -> None:
    """A tiny Llama, one of whose settings is another, or missing."""
    to_gguf: Any = pytest.importorskip("to_gguf")

    def added(writer: Any, config: Any) -> None:
        add_settings(writer, config)
        pieces = writer.kv_data[0]
        pieces.pop(f"llama.{key}", None)
        if isinstance(value, list):
            writer.add_array(f"llama.{key}", value)
        elif value is not None:
            kinds = {str: "string", bool: "bool", int: "int64", float: "float32"}
            getattr(writer, f"add_{kinds[type(value)]}")(f"llama.{key}", value)

    add_settings = to_gguf.add_settings
    with pytest.MonkeyPatch.context() as patched:
        if key:
            patched.setattr(to_gguf, "add_settings", added)
        path.unlink(missing_ok=True)
        to_gguf.write(tiny_model("llama"), path)


def test_a_whole_file_is_read_for_transformers(tmp_path: Path) -> None:
    write_llama(tmp_path / "a.gguf")
    model, (_, weights) = tiny_model("llama"), read_for_transformers(tmp_path / "a.gguf", torch.float32)
    assert all(weight.equal(model.state_dict()[name]) for name, weight in weights.items())


@pytest.mark.parametrize("key", [*KEYS[:2], *(pytest.param(key, marks=pytest.mark.slow) for key in KEYS[2:])])
def test_settings_that_make_no_model_are_refused(key: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    for value in VALUES:
        write_llama(path, key, value)
        is_read = loads_or_says_why(lambda: read_for_transformers(path, torch.float32), f"{key} {value}")
        assert not is_read or key not in KEYS[:2], value
