"""`train-head` under kill -9: the same command goes on, and nothing that was computed is computed again."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from heads import own_text
from multidraft_research.cli import train_head
from multidraft_research.training.heads import run
from safetensors.torch import load_file

TRAIN = [sys.executable, "-m", "multidraft", "train-head", "--kind", "medusa", "--target", "embedded"]
TRAIN += ["--tokens", "9000", "--vocabulary", "200", "--depth", "2", "--batch", "300", "--steps", "60", "--every", "20"]
SECONDS = 300
DONE = {  # when a run is killed: as soon as so much is there
    "text": lambda out: (out / "text.jsonl").exists() and (out / "text.jsonl").stat().st_size > 2000,
    "states": lambda out: any((out / "states").glob("*.safetensors")),
    "checkpoint": lambda out: (out / "checkpoint.pt").exists(),
    "head": lambda out: (out / "log.jsonl").exists(),
}


def killed(out: Path, is_done: Callable[[Path], bool]) -> None:
    """Train until something is there, and not a moment longer."""
    with subprocess.Popen([*TRAIN, "--self", "--out", out], stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + SECONDS
        while not is_done(out) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        process.kill()


def files_of(out: Path) -> dict[Path, int]:
    """When each file of the captured states was written."""
    return {path: path.stat().st_mtime_ns for path in (out / "states").glob("[!.]*.safetensors")}


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_as_one_that_was_not(tmp_path):
    out, lines, states = tmp_path / "killed", list[bytes](), dict[Path, int]()
    for is_done in DONE.values():
        killed(out, is_done)
        assert is_done(out)
        text = (out / "text.jsonl").read_bytes().splitlines(keepends=True)
        assert text[: len(lines)] == lines
        assert states.items() <= files_of(out).items()
        lines, states = [line for line in text if line.endswith(b"\n")], files_of(out)
    subprocess.run([*TRAIN, "--self", "--out", out], check=True, timeout=SECONDS)
    assert not (out / "checkpoint.pt").exists()
    assert files_of(out) == states
    whole = tmp_path / "whole"
    subprocess.run([*TRAIN, "--text", out / "text.jsonl", "--out", whole], check=True, timeout=SECONDS)
    ours, theirs = (load_file(folder / "head" / "model.safetensors") for folder in (out, whole))
    assert ours.keys() == theirs.keys()
    assert all(weight.equal(theirs[name]) for name, weight in ours.items())


@pytest.mark.parametrize(
    "moment", ["before the head is written", pytest.param("before the log is", marks=pytest.mark.slow)]
)
def test_a_run_that_ends_at_its_last_moment_is_not_taken_for_a_ready_one(moment, tmp_path, monkeypatch):
    """The head that it had then was an older one, or none, and the next run called it ready."""
    for name in ("whole", "torn"):
        own_text(tmp_path / name)
    settings = {"kind": train_head.Kind.medusa, "target": "embedded", "tokens": 90, "vocabulary": 50}
    settings |= {"self_written": True, "steps": 2, "batch": 50, "every": 1, "depth": 2}
    train_head.train_head(out=tmp_path / "whole", **settings)
    plainly, heads = run.write, list[None]()

    def torn(*words: object) -> None:
        heads.append(None)
        if len(heads) > 1:  # the last one
            if moment == "before the log is":
                plainly(*words)
            raise SystemExit(137)
        plainly(*words)

    with monkeypatch.context() as patched:
        patched.setattr(run, "write", torn)
        with pytest.raises(SystemExit):
            train_head.train_head(out=tmp_path / "torn", **settings)
    train_head.train_head(out=tmp_path / "torn", **settings)
    ours, theirs = (load_file(tmp_path / name / "head" / "model.safetensors") for name in ("whole", "torn"))
    assert all(weight.equal(theirs[name]) for name, weight in ours.items())
    shutil.rmtree(tmp_path)
