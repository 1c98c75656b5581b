"""What of ik_llama.cpp has to be looked after: wide passes, free cells between others; and who reads which file."""

from importlib.metadata import PackageNotFoundError

import pytest
import torch
from ggufs import HAS_LLAMA_CPP, pair_files, tiny_file, window_file

import multidraft as md
from multidraft.errors import AdviceError
from multidraft.models.gguf import IK_LLAMA_CPP, LLAMA_CPP, choice, ik_llama
from multidraft.models.gguf.choice import LIBRARY_VARIABLE, library_for
from multidraft.models.gguf.library import LlamaCpp
from multidraft.models.gguf.places import FOLDER_VARIABLE

pytest.importorskip("ik_llama_cpp")
PREFIX, TEXT = list(range(20, 78)), list(range(100, 108))


@pytest.fixture(autouse=True)
def any_library(monkeypatch):
    monkeypatch.delenv(LIBRARY_VARIABLE, raising=False)


def chain(length: int, start: int = -1) -> list[int]:
    return list(range(start, start + length))


def logits_behind_a_gap() -> torch.Tensor:
    """Of a text whose tokens lie before and behind cells that another row has left, the 64th among them."""
    model = md.GGUF(pair_files()[0], library=IK_LLAMA_CPP)
    run, other = model.new(128), model.new(8)
    run.forward([PREFIX], [chain(len(PREFIX))], "none")
    run.commit([chain(len(PREFIX), 0)])
    other.forward([[5, 6, 7, 8, 9, 10]], [chain(6)], "none")
    run.forward([TEXT[:3]], [chain(3)], "none")
    run.commit([[0, 1, 2]])
    other.gather([])
    return run.forward([TEXT[3:]], [chain(5)]).logits[0]


def logits_of_a_text_alone() -> torch.Tensor:
    text = PREFIX + TEXT
    run = md.GGUF(pair_files()[0], library=IK_LLAMA_CPP).new(128)
    return run.forward([text], [chain(len(text))]).logits[0, -5:]


def difference() -> float:
    expected = logits_of_a_text_alone()
    return float((logits_behind_a_gap() - expected).abs().max() / expected.abs().max())


def test_tokens_behind_a_gap_are_seen():
    assert difference() < 0.003


def test_without_a_look_at_the_cells_they_are_overlooked(monkeypatch):
    monkeypatch.setattr(ik_llama.IkCells, "make_room", lambda *_: True)
    assert difference() > 0.01


def test_free_cells_do_not_pile_up():
    """Of each tree a single node is kept, and the cells of the others are used again."""
    run = md.GGUF(tiny_file("llama"), library=IK_LLAMA_CPP).new(40)
    for _ in range(12):
        run.forward([[1, 2, 3, 4, 5, 6]], [[-1, -1, -1, -1, -1, -1]], "none")
        run.commit([[5]])
    cells = run.memory.in_context
    assert cells.is_tidy()
    assert cells.end <= cells.view.used + ik_llama.MAX_WASTE + cells.view.used // 8
    assert run.memory.cells == 256


def test_a_long_text_is_read_in_passes_that_agree_with_single_tokens():
    """To the bit: each piece of a pass, and each token alone."""
    text = [token % 4000 for token in range(7, 707, 7)]
    model = md.GGUF(pair_files("q8_0")[0], library=IK_LLAMA_CPP)
    together = model.new(128).forward([text], [chain(len(text))]).logits[0]
    run, alone = model.new(128), []
    for token in text[:40]:
        alone.append(run.forward([[token]], [[-1]]).logits[0, 0])
        run.commit([[0]])
    assert torch.equal(together[:40], torch.stack(alone))


def test_a_wide_pass_would_not_agree(monkeypatch):
    monkeypatch.setattr(ik_llama.IkLlamaCpp, "most_tokens", 128)
    monkeypatch.setattr(ik_llama.IkLlamaCpp, "pass_tokens", 128)
    with pytest.raises(AssertionError):
        test_a_long_text_is_read_in_passes_that_agree_with_single_tokens()


def test_the_first_library_that_reads_a_small_file_is_taken(monkeypatch, tmp_path):
    (tmp_path / "libllama.so").touch()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    path = tiny_file("llama")
    assert library_for(path).name == library_for(path, IK_LLAMA_CPP).name == IK_LLAMA_CPP
    taken = object.__new__(LlamaCpp)
    monkeypatch.setattr(choice, "llama_cpp", lambda build: taken)
    assert library_for(path, LLAMA_CPP) is taken
    assert library_for(path, kind="f32") is taken
    assert library_for(path, gpu_layers=3) is taken
    assert library_for(window_file()) is taken
    monkeypatch.setenv(LIBRARY_VARIABLE, LLAMA_CPP)
    assert library_for(path) is taken


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (dict(version="0.2.0"), r"ik-llama-cpp-python 0\.2\.0 was not tried \(pip install .*==0\.1\.5\)"),
        (dict(version=None), r"pip install --no-deps ik-llama-cpp-python==0\.1\.5 is missing"),
        (dict(avx2=False), "this processor has no AVX2"),
        (dict(kind="bf16"), "it keeps keys and values in f16"),
        (dict(gpu_layers=2), "it computes without a GPU"),
        (dict(path="window"), "of the family 'gemma3', and it was tried with llama, qwen2, qwen3"),
    ],
)
def test_what_it_does_not_read_is_said_in_one_line(wrong, reason, monkeypatch):
    def version(_: str) -> str:
        if wrong["version"] is None:
            raise PackageNotFoundError
        return wrong["version"]

    if "version" in wrong:
        monkeypatch.setattr(ik_llama, "version", version)
    monkeypatch.setattr(ik_llama, "has_avx2", lambda: wrong.get("avx2", True))
    path = window_file() if "path" in wrong else tiny_file("llama")
    arguments = wrong.get("kind", "f16"), wrong.get("gpu_layers")
    with pytest.raises(AdviceError, match=rf"^ik_llama\.cpp does not read [^\n]*: {reason}; use llama\.cpp$"):
        library_for(path, IK_LLAMA_CPP, *arguments)

    if not HAS_LLAMA_CPP:
        advice = r"no llama\.cpp is found; [^\n]*(?:, or read it by --engine transformers)?"
        with pytest.raises(AdviceError, match=rf"{advice} \(ik_llama\.cpp does not read [^\n]*: {reason}\)$"):
            library_for(path, None, *arguments)


def test_an_unknown_library_is_refused():
    with pytest.raises(AdviceError, match=r"the library is 'llama'; use one of ik_llama\.cpp, llama\.cpp, or"):
        md.GGUF(tiny_file("llama"), library="llama")
