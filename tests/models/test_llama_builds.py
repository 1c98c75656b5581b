"""Builds of llama.cpp: their parameters by their defaults, where they lie, and whether they read a model rightly."""

import json
import re
import signal
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from ggufs import HAS_LLAMA_CPP, INSTALLED, pair_files, tiny_file, to_gguf
from tiny import tiny_model

import multidraft as md
from multidraft.errors import AdviceError
from multidraft.models.gguf import IK_LLAMA_CPP, LLAMA_CPP, binding, sample
from multidraft.models.gguf.binding import Parameters, context_members, model_members, structure
from multidraft.models.gguf.library import build_digest, check_alone, mapped_files
from multidraft.models.gguf.places import FOLDER_VARIABLE, llama_cpp_path
from multidraft.models.gguf.trial import error_of, fault_of
from multidraft.models.gguf.verdicts import WIDTHS, is_of_library, kept_verdict, read_verdict, verdict_on
from multidraft.models.reader import Scores

FLOATS = struct.pack("=6f", 0, 0, -1, -1, -1, -1)
FLAGS = bytes((0, 1, 1, 1, 1, 0))


def defaults(new_sizes: tuple[int, ...] = (), kind: tuple[int, ...] = (), behind_types: int = 16) -> bytes:
    """A context's default parameters, as versions have them that differ in what was put between others."""
    head = struct.pack(f"={4 + len(new_sizes)}I", 512, 2048, 512, 1, *new_sizes) + struct.pack("=2i", 4, 4)
    head += struct.pack(f"={len(kind) + 4}i", *kind, -1, -1, -1, -1) + FLOATS + struct.pack("=if", 0, -1)
    head += bytes(-len(head) % 8 + 16)  # the callback and what it is given
    return (head + struct.pack("=2i", 1, 1) + bytes(behind_types) + FLAGS).ljust(binding.ROOM, b"\0")


LAYOUTS = {  # by version: its defaults, and where n_threads, flash_attn_type, type_k and kv_unified are
    "late 2025": (defaults(), (16, 36, 88, 117)),
    "with snapshots and outputs": (defaults((0, 0, 1), (0,)), (28, 52, 104, 133)),
    "with another pointer": (defaults((0, 0, 1), (0,), 24), (28, 52, 104, 141)),
}


@pytest.mark.parametrize("version", LAYOUTS)
def test_members_are_where_the_defaults_say(version):
    told, places = LAYOUTS[version]
    members = context_members(told)
    assert tuple(members[name][0] for name in ("n_threads", "flash_attn_type", "type_k", "kv_unified")) == places
    laid_out = structure(members).from_buffer_copy(told)
    assert (laid_out.n_ctx, laid_out.n_seq_max, laid_out.n_threads_batch, laid_out.type_v) == (512, 1, 4, 1)
    assert (laid_out.swa_full, laid_out.kv_unified, laid_out.cb_eval) == (True, False, None)
    laid_out.kv_unified, laid_out.n_threads = True, 3
    changed = [place for place, (old, new) in enumerate(zip(told, bytes(laid_out), strict=True)) if old != new]
    assert changed == [places[0], places[3]]


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        (struct.pack("=4I", 512, 2048, 512, 1), struct.pack("=4I", 0, 2048, 512, 1), "begin with other members"),
        (struct.pack("=2i", 4, 4), struct.pack("=2i", 8, 8), "threads"),
        (struct.pack("=4i", -1, -1, -1, -1), struct.pack("=4i", -1, -1, -1, 0), "flash attention"),
        (struct.pack("=2i", 1, 1), struct.pack("=2i", 1, 8), "types of keys and values"),
        (FLAGS, bytes((0, 1, 1, 0, 1, 0)), "flags"),
    ],
)
def test_defaults_of_an_unknown_version_are_refused(old, new, missing):
    with pytest.raises(ValueError, match=missing):
        context_members(LAYOUTS["late 2025"][0].replace(old, new))


def test_layers_on_a_gpu_are_where_they_were_or_refused():
    for layers in (-1, 999):
        assert model_members(bytes(16) + struct.pack("=2i", layers, 1))["n_gpu_layers"][0] == 16
    for other in (struct.pack("=2i", 0, 1), struct.pack("=2i", -1, 2)):
        with pytest.raises(ValueError, match="other parameters"):
            model_members(bytes(16) + other)


def test_a_named_folder_is_taken_or_refused_and_a_variable_comes_second(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, name in ((first, "libllama.so"), (second / "build" / "bin", "libllama.cuda.v0.4.0.so")):
        folder.mkdir(parents=True)
        (folder / "libllama-common.so").touch()  # no library of that name
        (folder / name).touch()
    monkeypatch.setenv(FOLDER_VARIABLE, str(second))
    assert llama_cpp_path() == second / "build" / "bin" / "libllama.cuda.v0.4.0.so"
    assert llama_cpp_path(first) == llama_cpp_path(first / "libllama.so") == first / "libllama.so"
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(AdviceError, match=rf"{FOLDER_VARIABLE} is .*none', and there is no such folder; give"):
        llama_cpp_path()
    with pytest.raises(AdviceError, match=r"the folder of llama.cpp is .*, and no .* is in it; give"):
        llama_cpp_path(tmp_path)


def test_what_is_no_library_is_refused_in_one_line(tmp_path):
    (tmp_path / "libllama.so").write_text("no library")
    with pytest.raises(AdviceError, match=r"^cannot load llama.cpp \([^\n]*\); get a build for this system"):
        md.GGUF(tiny_file("llama"), library=str(tmp_path))
    libc = Path("/lib/x86_64-linux-gnu/libc.so.6")
    if libc.exists():
        with pytest.raises(AdviceError, match=r"^this version of llama\.cpp is not known \([^\n]*undefined symbol"):
            md.GGUF(tiny_file("llama"), library=str(libc))


def test_a_build_is_told_from_others_by_its_files(tmp_path):
    library = tmp_path / "libllama.so"
    library.write_bytes(b"1")
    first = build_digest(library)
    (tmp_path / "libggml-cpu-haswell.so").touch()
    second = build_digest(library)
    library.write_bytes(b"2")
    assert len({first, second, build_digest(library)}) == 3


def test_a_second_build_with_files_of_the_same_names_is_refused(tmp_path):
    """Of two libraries whose files have the same names the system would give one the other's functions."""
    md.GGUF(tiny_file("llama"), library=INSTALLED[0])
    for file in mapped_files():
        if "ggml" in file.name:
            check_alone(file.with_name("libllama.so"))
            (tmp_path / file.name).touch()
            with pytest.raises(AdviceError, match=r"another build of llama\.cpp is in this process already .*; use"):
                check_alone(tmp_path / "libllama.so")


F32 = 0  # ggml's number


@dataclass
class Twin(md.GGUF):
    """A model that reads rightly, but for one thing."""

    fault: str = ""

    def __init__(self, path: Path, fault: str):
        super().__init__(path, library=INSTALLED[0])
        self.fault = fault

    def forward(self, tokens, parents, *settings) -> Scores:
        scores = super().forward(tokens, parents, *settings)
        if self.fault == "tree" and parents[0] != list(range(-1, len(parents[0]) - 1)):
            scores.logits[0, -1] = scores.logits[0, 0]
        if self.fault == "single" and len(tokens[0]) == 1:
            scores.logits.mul_(1.1)
        if self.fault == "wide" and 20 < len(tokens[0]) < 40:
            scores.logits[0, -1] *= 1.1
        if self.fault == "widest" and len(tokens[0]) > 60:  # one row of many: the error of all is below what is allowed
            scores.logits[0, -1] = scores.logits[0, 0]
        return scores

    def _commit(self, paths):
        return super()._commit([[0, 1, 3]] if self.fault == "kept" and paths == [[0, 2, 6]] else paths)

    def _fork(self, fork, row: int, length: int):
        super()._fork(fork, row, length - (self.fault == "copied"))


@pytest.fixture(scope="module")
def wide_file(tmp_path_factory) -> Path:
    """A model whose matrices are wide enough for a sample, in 8 bits, and a few in 4."""
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    model = tiny_model("llama", hidden_size=256, intermediate_size=256, vocab_size=300)
    to_gguf.write(model, path, "q8_0")
    return path


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("", None),
        ("tree", r"its logits of the path \(0, 2, 6\) of a tree are off by"),
        ("wide", "its logits of a long pass are off by"),
        ("widest", "its logits of a long pass are off by"),
        ("single", "its logits of a single token are off by"),
        ("kept", "its logits of a kept path are off by"),
        ("copied", "its logits of a copied row are off by"),
    ],
)
def test_a_library_that_reads_a_sample_wrongly_is_found_out(fault, said, wide_file, tmp_path):
    matrices = sample.matrices(wide_file)
    sample.write(matrices, tmp_path / "sample.gguf")
    found = fault_of(Twin(tmp_path / "sample.gguf", fault), matrices)
    assert found is None if said is None else re.match(said, found)


def test_a_library_with_other_weights_is_found_out(wide_file, tmp_path):
    matrices = sample.matrices(wide_file)
    sample.write(matrices, tmp_path / "sample.gguf")
    others = {name: corner._replace(rows=corner.rows[::-1]) for name, corner in matrices.items()}
    assert fault_of(Twin(tmp_path / "sample.gguf", ""), others).startswith("its logits are off by 1.")
    assert not sample.matrices(tiny_file("llama"))  # too small


@pytest.mark.parametrize("size", [0.005, 0.05, 0.5])
def test_what_is_attended_to_shows_in_a_samples_logits_and_rounding_does_not(size):
    numbers = np.random.default_rng(0).normal(0, size, (len(sample.MATRICES), sample.WIDTH, sample.WIDTH))
    rows = numbers.astype(np.float32).view(np.uint8)
    matrices = {name: sample.Corner(F32, rows[index]) for index, name in enumerate(sample.MATRICES)}
    text = np.random.default_rng(1).integers(0, sample.WIDTH, 50).tolist()
    right, wrong = sample.logits(matrices, text), sample.logits(matrices, [*text[:-1], 7, text[-1]])[-1]
    assert np.abs(wrong - right[-1]).max() / np.abs(right).max() > 0.1  # a sibling is seen
    error = error_of(sample.logits(matrices, text, is_rounded=True), right)
    assert 0.005 < error < 0.05


def test_a_process_that_dies_or_says_nothing_is_a_verdict():
    def ended(code: int, out: str = "", error: str = "") -> str | None:
        return read_verdict(subprocess.CompletedProcess([], code, out, error)).fault

    assert ended(-4) == "it ends the process (SIGILL)"
    last_line = "library: CUDA error: out of memory\nggml-cuda.cu:101: CUDA error\n"
    assert ended(-6, error=last_line) == "it ends the process (SIGABRT: CUDA error: out of memory)"
    assert ended(1, error="Traceback\n  x\nAdviceError: no such file\n") == "AdviceError: no such file"
    assert ended(0) == "it says nothing"
    lasting = {
        code: is_of_library(code) for code in (0, -signal.SIGILL, 1, -signal.SIGABRT, -signal.SIGKILL, -signal.SIGINT)
    }
    assert [code for code, lasts in lasting.items() if lasts] == [0, -signal.SIGILL]
    assert ended(0, 'noise\n{"fault": null, "milliseconds": {"1": 2.0}}\n') is None


@pytest.mark.slow
def test_a_verdict_is_found_in_a_process_of_its_own_and_kept(wide_file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    verdict = verdict_on(
        wide_file, str(llama_cpp_path()) if INSTALLED[0] == LLAMA_CPP else INSTALLED[0], "this version"
    )
    assert verdict.fault is None
    assert tuple(verdict.milliseconds) == WIDTHS
    assert all(value > 0 for value in verdict.milliseconds.values())
    place = tmp_path / "kept.json"
    place.write_text(json.dumps(verdict._asdict() | {"was_busy": False}))
    assert kept_verdict(place) == verdict
    for damaged in ("", "[]", '{"fault": null}', '{"fault": null, "milliseconds": {"a": 1}, "was_busy": false}'):
        place.write_text(damaged)
        assert kept_verdict(place) is None


@pytest.mark.skipif(not HAS_LLAMA_CPP, reason="there is no llama.cpp")
def test_a_build_by_its_folder_reads_as_by_its_name():
    path, tokens = pair_files()[0], [[5, 6, 7]]
    by_name, by_folder = (
        md.GGUF(path, library=library).new(8).forward(tokens, [[-1, 0, 0]]).logits
        for library in (LLAMA_CPP, str(llama_cpp_path().parent))
    )
    assert by_name.equal(by_folder)
    assert np.isfinite(by_name.numpy()).all()
    assert md.GGUF(path, library=LLAMA_CPP).fingerprint.keys() == {"digest", "dtype", LLAMA_CPP}
    assert IK_LLAMA_CPP != LLAMA_CPP


def test_parameters_of_which_nothing_is_known_have_room():
    assert len(bytes(Parameters())) == binding.ROOM
