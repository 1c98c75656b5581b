"""Captures: what is kept is what the models say, whole or not at all, whatever stopped the run in between."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from captures import keep
from commands import run as command
from deadly import Deadly
from multidraft_research.captures import work
from multidraft_research.captures.capturing import Manner, capture, largest
from multidraft_research.captures.folder import FORMAT, MANIFEST, Capture, clear
from multidraft_research.captures.recording import Recording, joined
from multidraft_research.captures.work import Capturing, Passage, check_room
from multidraft_research.studies.acceptance import random_pairs
from tiny import VOCABULARY, tiny_model

import multidraft as md
from multidraft.cli.crews import Processes, alone, run
from multidraft.errors import AdviceError
from multidraft.io import files as outputs
from multidraft.io.journal import Journal
from multidraft.zoo import Pair

PASSAGES = [Passage(f"p{i}", "task", tokens) for i, tokens in enumerate([[1, 2, 3], [4, 5], [6, 7, 8, 9]])]
SETTINGS = {"capture": FORMAT, "vocabulary": VOCABULARY, "prompts": len(PASSAGES)}


def pair() -> Pair:
    """Two tiny models."""
    return Pair(tiny_model("llama"), tiny_model("mistral"), None)  # type: ignore[arg-type]  # no text here


def captured(folder: Path, manner: Manner, load=pair) -> Capture:
    """A capture of the tiny models in a folder."""
    journal = Journal(folder / MANIFEST, SETTINGS)
    run(Capturing(load, PASSAGES, manner, folder), len(PASSAGES), journal, alone, "capturing")
    return Capture.open(folder)


def files(folder: Path) -> dict[str, bytes]:
    """All that lies in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_kept_is_what_the_models_say(tmp_path) -> None:
    """The logits are those of a forward pass over prompt and continuation, and survive the files."""
    target, draft, _ = pair()
    kept = captured(tmp_path, Manner(new_tokens=5))
    assert kept.positions == 15
    whole = joined(capture(target, draft, [passage.tokens for passage in PASSAGES], Manner(new_tokens=5)))
    assert torch.equal(kept.recording().target, whole.target)
    assert torch.equal(kept.recording().draft, whole.draft)
    shard = kept.shard(0)
    tokens, _ = md.generate(target, None, [[1, 2, 3]], max_new_tokens=5, generator=torch.Generator().manual_seed(0))
    assert (shard.prompt.tolist(), shard.tokens.tolist()) == ([1, 2, 3], tokens[0].tolist())
    text = torch.tensor([[1, 2, 3, *shard.tokens.tolist()]])
    assert torch.allclose(shard.recording.draft, draft(text).logits[0, 2:-1], atol=1e-5)


def test_given_text_can_be_scored(tmp_path) -> None:
    shard = captured(tmp_path, Manner(new_tokens=2, score=True)).shard(2)
    assert (shard.prompt.tolist(), shard.tokens.tolist()) == ([6], [7, 8])
    logits = pair().target(torch.tensor([[6, 7, 8]])).logits[0, :2]
    assert torch.allclose(shard.recording.target, logits, atol=1e-5)


def test_the_tail_keeps_its_probability_and_the_loss_is_said(tmp_path) -> None:
    recording = random_pairs(6, 40, 0)
    kept = Capture.open(keep(tmp_path, recording, top_k=10))
    for name in ("target", "draft"):
        true, cut = (getattr(r, name).double().softmax(-1) for r in (recording, kept.shard(0).recording))
        same = torch.isclose(true, cut, atol=1e-7)
        assert (same.sum(-1) >= 10).all()  # what is kept is right, and so is the sum of what is not
        assert torch.isin(true.argmax(-1), same.nonzero()[:, 1]).all()
        lost = float((true - cut).abs().sum(-1).mean() / 2)
        assert getattr(kept.entries[0], f"{name}_loss") == pytest.approx(lost, abs=1e-6)
        assert lost > 0.01


def test_all_tokens_kept_lose_nothing(tmp_path) -> None:
    recording = random_pairs(3, 20, 1)
    kept = Capture.open(keep(tmp_path, recording, top_k=20))
    assert torch.equal(kept.recording().draft, recording.draft)
    assert kept.entries[0].draft_loss == 0


@pytest.mark.parametrize("top_k", [None, 7])
def test_a_run_that_was_killed_goes_on_to_the_same_files(tmp_path, monkeypatch, top_k) -> None:
    manner = Manner(new_tokens=4, top_k=top_k)
    captured(tmp_path / "whole", manner)
    one, calls = work.one, []

    def killed(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return one(*arguments)

    monkeypatch.setattr(work, "one", killed)
    with pytest.raises(KeyboardInterrupt):
        captured(tmp_path / "torn", manner)
    with pytest.raises(AdviceError, match="has 1 of 3 prompts"):
        Capture.open(tmp_path / "torn")
    with (tmp_path / "torn" / MANIFEST).open("a") as manifest:
        manifest.write('{"file": "00001.safete')
    (tmp_path / "torn" / "00001.safetensors").write_bytes(b"half")
    (tmp_path / "torn" / f"{outputs.NEW}123.safetensors").write_bytes(b"half")
    clear(tmp_path / "torn")
    captured(tmp_path / "torn", manner)
    assert len(calls) == 4
    assert files(tmp_path / "torn") == files(tmp_path / "whole")


def test_a_shard_that_was_changed_is_not_read(tmp_path) -> None:
    folder = keep(tmp_path, random_pairs(2, 10, 0), random_pairs(2, 10, 1))
    content = bytearray((folder / "00001.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "00001.safetensors").write_bytes(content)
    kept = Capture.open(folder)
    assert torch.equal(kept.shard(0).recording.target, random_pairs(2, 10, 0).target)
    with pytest.raises(AdviceError, match="another checksum"):
        kept.shard(1)
    (folder / "00001.safetensors").unlink()
    with pytest.raises(AdviceError, match="cannot read the shard"):
        kept.shard(1)


def test_a_shard_on_a_full_disk_is_not_there(tmp_path, monkeypatch) -> None:
    def torn(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", torn)
    with pytest.raises(AdviceError, match="No space left"):
        keep(tmp_path, random_pairs(2, 5, 0))
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


def test_the_size_is_known_before(tmp_path, monkeypatch) -> None:
    manner = Manner(new_tokens=5)
    made = captured(tmp_path, manner)
    most = largest(len(PASSAGES), manner, VOCABULARY)
    assert most <= sum(entry.bytes for entry in made.entries) <= most + 3000
    monkeypatch.setattr(work.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1000}))
    with pytest.raises(AdviceError, match="or --top-k"):
        check_room(pair(), 3, manner, VOCABULARY, tmp_path)


def test_what_was_captured_is_shown(tmp_path) -> None:
    folder = keep(tmp_path, random_pairs(2, 10, 0), random_pairs(3, 10, 1), top_k=4)
    result = command("capture", "--show", str(folder), "--json")
    shown = json.loads(result.stdout)
    assert (shown["positions"], shown["vocabulary"], len(shown["shards"])) == (5, 10, 2)
    assert shown["draft_loss"] == pytest.approx(sum(s["draft_loss"] * s["positions"] for s in shown["shards"]) / 5)
    assert "positions" in command("capture", "--show", str(folder)).stdout


@pytest.mark.parametrize("crew", [alone, Processes(2)])
def test_records_come_in_order_whoever_does_the_jobs(tmp_path, crew) -> None:
    journal = Journal(tmp_path / "journal", {})
    run(Deadly(tmp_path, 0, 0), 5, journal, crew, "squaring")
    assert Journal(tmp_path / "journal", {}).records == [{"square": i**2} for i in range(5)]


def test_a_worker_that_is_killed_is_survived(tmp_path) -> None:
    journal = Journal(tmp_path / "journal", {})
    run(Deadly(tmp_path, 2, 1), 4, journal, Processes(2), "squaring")
    assert journal.records == [{"square": i**2} for i in range(4)]
    assert (tmp_path / "died-0").exists()


def test_a_job_that_kills_every_worker_ends_with_advice(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("multidraft.cli.crews.PATIENCE", 1)
    with pytest.raises(AdviceError, match="job 0"):
        run(Deadly(tmp_path, 0, 9), 2, Journal(tmp_path / "journal", {}), Processes(2), "squaring")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_kill_9_in_the_middle_of_the_command(tmp_path, workers) -> None:
    command = [sys.executable, "-c", "from multidraft.cli.main import main; main()", "capture", "--new-tokens", "8"]

    def capture(name: str) -> list[str]:
        return [*command, "--workers", str(workers), "--out", str(tmp_path / name)]

    subprocess.run([*command, "--out", str(tmp_path / "whole")], check=True, capture_output=True)
    with subprocess.Popen(capture("torn"), stderr=-1, stdout=-1, start_new_session=True) as process:
        manifest = tmp_path / "torn" / MANIFEST
        while process.poll() is None and not (manifest.exists() and manifest.read_bytes().count(b"\n") > 2):
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    assert manifest.read_bytes().count(b"\n") < 7
    subprocess.run(capture("torn"), check=True, capture_output=True)
    assert files(tmp_path / "torn") == files(tmp_path / "whole")


def test_recordings_of_two_dtypes_are_kept_as_they_are(tmp_path) -> None:
    made = random_pairs(2, 10, 0)
    recording = Recording(made.target.bfloat16(), made.draft)
    read = Capture.open(keep(tmp_path, recording)).recording()
    assert (read.target.dtype, read.draft.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(read.target, recording.target)
