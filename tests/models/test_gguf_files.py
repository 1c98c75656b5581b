"""GGUF files in parts, of unusual types, and what is no model: read, or refused alike by all engines in one line."""

import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ggufs import tiny_file
from transformers import AutoModelForCausalLM

import multidraft as md
from multidraft.errors import AdviceError, say_once
from multidraft.models.gguf import header, ik_llama
from multidraft.models.gguf.keeping import cached_model
from multidraft.models.huggingface import from_gguf

gguf: Any = pytest.importorskip("gguf")


def test_the_sizes_of_blocks_are_those_of_ggml():
    sizes = {int(kind): size for kind, size in gguf.GGML_QUANT_SIZES.items() if kind.name not in ("Q8_1", "Q8_K")}
    assert {kind: sizes[kind] for kind in header.BLOCKS} == header.BLOCKS


@pytest.fixture
def split(tmp_path: Path) -> list[Path]:
    """A tiny Llama in three files, as llama-gguf-split leaves them."""
    reader = gguf.GGUFReader(tiny_file("llama"))
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama", split_max_tensors=-(-len(reader.tensors) // 3))
    for name, kept in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            writer.add_key_value(name, kept.contents(), kept.types[0])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(tmp_path.glob("model-*.gguf"))


ENGINES = {"native": lambda path: md.GGUF(path), "transformers": lambda path: from_gguf.read(path, torch.float32)}


def test_a_split_model_is_read_from_its_first_part(split):
    whole, parts = md.GGUF(tiny_file("llama")).new(9), md.GGUF(split[0]).new(9)
    assert len(split) == 3
    assert parts.forward([[1, 2]], [[-1, 0]]).logits.equal(whole.forward([[1, 2]], [[-1, 0]]).logits)
    config, weights = from_gguf.read(split[0], torch.float32)
    expected_config, expected = from_gguf.read(tiny_file("llama"), torch.float32)
    assert config.to_dict() == expected_config.to_dict()
    assert all(weights[name].equal(value) for name, value in expected.items())


def test_what_is_kept_of_a_split_model_is_of_all_its_parts(split, tmp_path):
    """Behind another last part the old model answered."""
    folders = [cached_model(split[0], tmp_path, "made", Path.mkdir)]
    digests = [md.GGUF(split[0]).weights.digest]
    content = bytearray(split[2].read_bytes())
    content[-8:] = bytes(8)
    split[2].write_bytes(content)
    folders.append(cached_model(split[0], tmp_path, "made", Path.mkdir))
    digests.append(md.GGUF(split[0]).weights.digest)
    assert folders[0] != folders[1]
    assert digests[0] != digests[1]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_no_model_is_said_alike_by_all_engines(engine, split, tmp_path):
    """Parts, texts, and files that end too early: what is wrong, in one line."""
    whole, path = tiny_file("llama").read_bytes(), tmp_path / "some.gguf"

    def refusal(place: Path) -> str:
        with pytest.raises(AdviceError, match=r"^[^\n]*; [^\n]*$") as caught:
            ENGINES[engine](place)
        return str(caught.value).removeprefix(f"{str(place)!r} ").removeprefix(f"the GGUF file {str(place)!r} ")

    assert refusal(split[1]) == "is part 2 of 3 of a model; give the first, model-00001-of-00003.gguf"
    renamed = split[0].rename(tmp_path / "first.gguf")
    assert refusal(renamed) == "is part 1 of 3 of a model; name it NAME-00001-of-00003.gguf, as it was"
    renamed.rename(split[0])
    split[2].write_bytes(split[2].read_bytes()[:-40])
    assert "cut short or damaged: tensor" in refusal(split[0])
    split[2].unlink()
    assert "is one of 3 parts of a model, and model-00003-of-00003.gguf is not beside it" in refusal(split[0])
    for content, what in (
        (b"A story of old times.\n", "is no GGUF file: it begins with b'A st'; get the file again"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is no GGUF file: it begins with b'vers'"),
        (b"", "is no GGUF file: it begins with b''"),
        (whole[:50], "is cut short or damaged: "),
        (whole[: len(whole) // 2], "is cut short or damaged: tensor"),
        (whole[:-3], "is cut short or damaged: tensor"),
    ):
        path.write_bytes(content)
        assert what in refusal(path)


def with_type(path: Path, number: int) -> Path:
    """A tiny Llama whose header says that its last norm is of this type; nobody reads its weights."""
    content = tiny_file("llama").read_bytes()
    name = b"output_norm.weight"
    place = content.index(name) + len(name) + 4 + 8  # behind the number of sizes, and the one
    path.write_bytes(content[:place] + struct.pack("<I", number) + content[place + 4 :])
    return path


TYPES = {"TQ1_0": 34, "TQ2_0": 35, "NVFP4": 40, "a new one": 77}


@pytest.mark.parametrize("name", TYPES)
def test_types_over_which_ik_llama_ends_the_process_are_refused_before(name, tmp_path):
    reason = ik_llama.reason_against(with_type(tmp_path / "a.gguf", TYPES[name]), "f16", None)
    if ik_llama.reason_against_package() is None:
        assert reason == f"it has weights of type {TYPES[name]}, over which the library ends the process"


def test_a_type_that_is_read_badly_is_read_with_a_word(tmp_path, caplog):
    """The logits of IQ4_XS are a tenth off in ik_llama.cpp 0.1.5, those of other types a hundredth."""
    path = with_type(tmp_path / "a.gguf", 23)
    say_once.cache_clear()
    for _ in range(2):
        ik_llama.reason_against(path, "f16", None)
    if ik_llama.reason_against_package() is None:
        assert [record.message for record in caplog.records] == [ik_llama.COARSE_NOTE]


@pytest.mark.parametrize("name", ["IQ4_NL", "MXFP4", "Q2_K"])
def test_unusual_types_are_read_as_transformers_engine_reads_them(name, tmp_path):
    """The same numbers, up to the eight bits that activations are rounded to."""
    path, kind = tmp_path / "model.gguf", gguf.GGMLQuantizationType[name]
    tensors = {t.name: t for t in gguf.GGUFReader(wide_file()).tensors}
    write_quantised(path, tensors, kind)
    config, weights = from_gguf.read(path, torch.float32)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    text = [3, 1, 4, 1, 5]
    with torch.inference_mode():
        expected = model(torch.tensor([text])).logits[0, -1]
    logits = md.GGUF(path).new(20).forward([text], [[-1, 0, 1, 2, 3]], "last").logits[0, -1]
    assert (logits - expected).norm() < 0.05 * expected.norm()


@cache
def wide_file() -> Path:
    """A Llama as wide as a block of the larger types."""
    return tiny_file("llama", hidden_size=256, intermediate_size=256)


def write_quantised(path: Path, tensors: dict, kind: Any) -> None:
    """A file whose matrices have random blocks of a type, with scales that keep numbers small."""
    reader, random = gguf.GGUFReader(wide_file()), np.random.default_rng(0)
    writer, (block, size) = gguf.GGUFWriter(path, "llama"), gguf.GGML_QUANT_SIZES[kind]
    for name, kept in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            writer.add_key_value(name, kept.contents(), kept.types[0])
    small = np.frombuffer(np.float16(0.004).tobytes(), np.uint8)
    for name, tensor in tensors.items():
        if tensor.data.ndim < 2:
            writer.add_tensor(name, tensor.data)
            continue
        rows, width = tensor.data.shape
        blocks = random.integers(0, 256, (rows, width // block, size), dtype=np.uint8)
        if kind.name == "MXFP4":
            blocks[..., 0] = 118  # an exponent
        else:
            blocks[..., :2] = small
        if kind.name == "Q2_K":
            blocks[..., -4:] = np.concatenate([small, small])
        writer.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
