"""Captures: what is kept is what the models say, whole or not at all, whatever stopped the run in between.

Long runs write to places of their own, one at a time, and give the same bytes whoever does their jobs.
"""

import errno
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest
import torch
from captures import keep
from commands import ends_with_advice
from commands import run as command
from deadly import Deadly
from multidraft_research.captures.capturing import Manner, capture, capture_prompt, largest
from multidraft_research.captures.folder import FORMAT, MANIFEST, Capture, clear
from multidraft_research.captures.recording import Recording, join
from multidraft_research.captures.work import Capturing, Passage, check_room
from multidraft_research.cli.executors import Executor, JobFunction, Processes, run, serial
from multidraft_research.studies.acceptance import random_pairs
from tiny import VOCABULARY, tiny_model

import multidraft as md
from multidraft.errors import AdviceError
from multidraft.io import files as outputs
from multidraft.io.journal import Journal, Record
from multidraft.zoo import Pair

PASSAGES = [Passage(f"p{i}", "task", tokens) for i, tokens in enumerate([[1, 2, 3], [4, 5], [6, 7, 8, 9]])]
SETTINGS = {"capture": FORMAT, "vocabulary": VOCABULARY, "prompts": len(PASSAGES)}
HOLDS = """
import sys
from pathlib import Path
from multidraft.io.files import lock as hold
held = [hold(Path(place)) for place in sys.argv[1:]]
print("held", flush=True)
sys.stdin.read()
"""
COMMANDS = {  # and the place that is held, in the folder that {} stands for
    "generate --prompt Once --jsonl {}/results": "results",
    "generate --prompt Once --trace {}/trace": "trace",
    "tune --out {}/plan.json": "plan.json",
    "capture --limit 1 --out {}/kept": f"kept/{MANIFEST}",
    "study temperature --limit 1 --out {}/study": f"study/capture/{MANIFEST}",
    "study trees --limit 1 --out {}/trees": "trees/trees.jsonl",
    "study solve-time --out {}/solvers": f"solvers/capture/{MANIFEST}",
    "train --corpus {}/text --out {}/pair": "pair",
    "distill --capture {}/made --out {}/taught": "taught",
}


def pair() -> Pair:
    """Two tiny models."""
    return Pair(tiny_model("llama"), tiny_model("mistral"), None)  # type: ignore[arg-type]  # no text here


def captured(folder: Path, manner: Manner, executor: Executor = serial) -> Capture:
    """A capture of the tiny models in a folder."""
    journal = Journal(folder / MANIFEST, SETTINGS)
    run(Capturing(pair, PASSAGES, manner, folder), len(PASSAGES), journal, executor, "capturing")
    return Capture.open(folder)


def files(folder: Path) -> dict[str, bytes]:
    """All that lies in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_kept_is_what_the_models_say_and_its_size_is_known_before(tmp_path, monkeypatch) -> None:
    """The logits are those of a forward pass over prompt and continuation, and survive the files."""
    (target, draft, _), manner = pair(), Manner(new_tokens=5)
    kept = captured(tmp_path, manner)
    assert kept.positions == 15
    whole = join(capture(target, draft, [passage.tokens for passage in PASSAGES], manner))
    assert torch.equal(kept.recording().target, whole.target)
    assert torch.equal(kept.recording().draft, whole.draft)
    shard = kept.shard(0)
    tokens, _ = md.generate(target, None, [[1, 2, 3]], max_new_tokens=5, generator=torch.Generator().manual_seed(0))
    assert (shard.prompt.tolist(), shard.tokens.tolist()) == ([1, 2, 3], tokens[0].tolist())
    text = torch.tensor([[1, 2, 3, *shard.tokens.tolist()]])
    assert torch.allclose(shard.recording.draft, draft(text).logits[0, 2:-1], atol=1e-5)
    scored = captured(tmp_path / "scored", Manner(new_tokens=2, score=True)).shard(2)
    assert (scored.prompt.tolist(), scored.tokens.tolist()) == ([6], [7, 8])
    logits = target(torch.tensor([[6, 7, 8]])).logits[0, :2]
    assert torch.allclose(scored.recording.target, logits, atol=1e-5)  # of a given text
    most = largest(len(PASSAGES), manner, VOCABULARY)
    assert most <= sum(entry.bytes for entry in kept.entries) <= most + 3000
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1000}))
    with pytest.raises(AdviceError, match="or --top-k"):
        check_room(pair(), 3, manner, VOCABULARY, tmp_path)


def test_the_tail_keeps_its_probability_and_the_loss_is_said(tmp_path) -> None:
    recording = random_pairs(6, 40, 0)
    kept = Capture.open(keep(tmp_path / "cut", recording, top_k=10))
    for name in ("target", "draft"):
        true, cut = (getattr(r, name).double().softmax(-1) for r in (recording, kept.shard(0).recording))
        same = torch.isclose(true, cut, atol=1e-7)
        assert (same.sum(-1) >= 10).all()  # what is kept is right, and so is the sum of what is not
        assert torch.isin(true.argmax(-1), same.nonzero()[:, 1]).all()
        lost = float((true - cut).abs().sum(-1).mean() / 2)
        assert getattr(kept.entries[0], f"{name}_loss") == pytest.approx(lost, abs=1e-6)
        assert lost > 0.01
    assert torch.equal(Capture.open(keep(tmp_path / "whole", recording, top_k=40)).recording().draft, recording.draft)


def test_recordings_of_two_dtypes_are_kept_as_they_are_and_shown(tmp_path) -> None:
    recordings = random_pairs(2, 10, 0)
    recording = Recording(recordings.target.bfloat16(), recordings.draft)
    read = Capture.open(keep(tmp_path / "two", recording)).recording()
    assert (read.target.dtype, read.draft.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(read.target, recording.target)
    folder = keep(tmp_path / "shown", random_pairs(2, 10, 0), random_pairs(3, 10, 1), top_k=4)
    shown = json.loads(command("capture", "--show", folder, "--json").stdout)
    assert (shown["positions"], shown["vocabulary"], len(shown["shards"])) == (5, 10, 2)
    assert shown["draft_loss"] == pytest.approx(sum(s["draft_loss"] * s["positions"] for s in shown["shards"]) / 5)
    assert "positions" in command("capture", "--show", folder).stdout


@pytest.mark.parametrize("top_k", [None, 7])
def test_a_run_that_was_killed_goes_on_to_the_same_files(tmp_path, top_k) -> None:
    manner, torn, jobs_of_runs = Manner(new_tokens=4, top_k=top_k), tmp_path / "torn", list[list[int]]()
    captured(tmp_path / "whole", manner)

    def killed(work: JobFunction, jobs: Sequence[int]) -> Iterator[Record]:
        jobs_of_runs.append([*jobs])
        yield work(jobs[0])
        if len(jobs_of_runs) == 1:
            raise KeyboardInterrupt
        yield from map(work, jobs[1:])

    with pytest.raises(KeyboardInterrupt):
        captured(torn, manner, killed)
    with pytest.raises(AdviceError, match="has 1 of 3 prompts"):
        Capture.open(torn)
    with (torn / MANIFEST).open("a") as manifest:
        manifest.write('{"file": "00001.safete')
    for name in ("00001.safetensors", f"{outputs.NEW_PREFIX}123.safetensors"):
        (torn / name).write_bytes(b"half")
    clear(torn)
    captured(torn, manner, killed)
    assert jobs_of_runs == [[0, 1, 2], [1, 2]]
    assert files(torn) == files(tmp_path / "whole")


def test_a_shard_that_was_changed_is_not_read_and_one_on_a_full_disk_is_not_there(tmp_path, monkeypatch) -> None:
    folder = keep(tmp_path / "made", random_pairs(2, 10, 0), random_pairs(2, 10, 1))
    content = bytearray((folder / "00001.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "00001.safetensors").write_bytes(content)
    kept = Capture.open(folder)
    assert torch.equal(kept.shard(0).recording.target, random_pairs(2, 10, 0).target)
    with pytest.raises(AdviceError, match=r"another checksum.*run the command that makes it again"):
        kept.shard(1)
    (folder / "00001.safetensors").unlink()
    with pytest.raises(AdviceError, match="cannot read the shard"):
        kept.shard(1)

    def torn(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", torn)
    with pytest.raises(AdviceError, match="No space left"):
        keep(tmp_path / "full", random_pairs(2, 5, 0))
    assert [path.name for path in (tmp_path / "full").iterdir()] == [MANIFEST]


def test_what_two_captures_left_in_one_folder_is_mended_by_the_command_that_makes_it(tmp_path) -> None:
    """The shards of one, beside the manifest of the other."""
    whole, mixed, other = (tmp_path / name for name in ("whole", "both", "other"))
    words, file = ("capture", "--limit", 2, "--max-new-tokens", 2, "--out"), "00001.safetensors"
    for place, seed in ((whole, 0), (mixed, 0), (other, 1)):
        assert command(*words, place, "--seed", seed).exit_code == 0
    (mixed / file).write_bytes((other / file).read_bytes())
    assert command(*words, mixed).exit_code == 0
    assert files(mixed).items() >= files(whole).items()


@pytest.fixture(scope="module")
def held(tmp_path_factory) -> Iterator[Path]:
    """A folder with what commands read, whose other places another process holds."""
    folder = tmp_path_factory.mktemp("places")
    (folder / "text").write_text("Once upon a time. " * 40)
    keep(folder / "made", *(random_pairs(2, 10, seed) for seed in range(8)))
    places = [sys.executable, "-c", HOLDS, *(str(folder / place) for place in COMMANDS.values())]
    with subprocess.Popen(places, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield folder


@pytest.mark.parametrize("words", COMMANDS)
def test_a_place_that_another_run_writes_to_is_left_alone(held, words) -> None:
    result = command(*words.replace("{}", str(held)).split())
    ends_with_advice(result, "is written by process")
    assert "--wait" in result.stderr
    assert not (held / COMMANDS[words]).is_file()


def test_records_come_in_order_also_where_a_worker_is_killed_and_one_that_kills_all_is_named(
    tmp_path, monkeypatch
) -> None:
    for executor, deaths in ((serial, 0), (Processes(2), 1)):
        journal = Journal(tmp_path / f"{deaths} deaths", {})
        run(Deadly(tmp_path, 2, deaths), 4, journal, executor, "squaring")
        assert journal.records == [{"square": i**2} for i in range(4)]
        assert (tmp_path / "died-0").exists() == bool(deaths)
    monkeypatch.setattr("multidraft_research.cli.executors.MAX_WORKER_DEATHS", 1)
    with pytest.raises(AdviceError, match="job 0"):
        run(Deadly(tmp_path, 0, 9), 2, Journal(tmp_path / "journal", {}), Processes(2), "squaring")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_cluster_at_an_address_gives_the_same_files(tmp_path) -> None:
    """Two raylets of one processor each, as Ray's own test cluster has them; a capture, and a study of it."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    ray.shutdown()
    words = ["study", "top-k", "--limit", 3, "--max-new-tokens", 3, "--out"]
    assert command(*words, tmp_path / "alone").exit_code == 0
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        result = command(*words, tmp_path / "ray", "--ray", cluster.address)
        assert ray.get_runtime_context().gcs_address == cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert result.exit_code == 0, result.output
    for file in ("capture/manifest.jsonl", "top-k.json", "top-k.jsonl"):
        assert (tmp_path / "ray" / file).read_bytes() == (tmp_path / "alone" / file).read_bytes()


def test_a_cluster_that_is_not_there_is_said_at_once(tmp_path, monkeypatch) -> None:
    words = ("capture", "--out", tmp_path, "--ray")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "ray", None)
        ends_with_advice(command(*words, "local"), "pip install -c constraints.txt -e '.[ray]'")
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))  # which is not asked yet
    for address, advice in (("127.0.0.1:1", "no Ray cluster answers"), ("x", "give HOST:PORT")):
        ends_with_advice(command(*words, address), advice)
    assert list(tmp_path.iterdir()) == []


def test_a_capture_of_gguf_files_has_what_the_same_models_say_elsewhere(tmp_path):
    from ggufs import pair_files  # which skips where no library reads them

    target, draft = pair_files()
    words = ("capture", "--limit", 1, "--score", "--max-new-tokens", 8, "--out")
    for name, models in ("files", ("--target", target, "--draft", draft)), ("folders", ()):
        assert command(*words, tmp_path / name, *models).exit_code == 0
    by_library, theirs = (Capture.open(tmp_path / name).shard(0) for name in ("files", "folders"))
    assert by_library.tokens.tolist() == theirs.tokens.tolist()
    for model in ("target", "draft"):
        laws = [getattr(shard.recording, model).softmax(-1) for shard in (by_library, theirs)]
        assert (laws[0] - laws[1]).abs().max() < 0.01  # keys and values are kept in 16 bits
    found = command("study", "lookups", "--capture", tmp_path / "files", "--out", tmp_path / "study")
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize("manner", [Manner(new_tokens=30), Manner(new_tokens=30, score=True)])
def test_a_capture_ends_at_the_smaller_context_of_both_models(manner):
    """A draft model of 20 positions has nothing to say behind them; it failed with an index out of range."""
    target, draft = tiny_model("llama"), tiny_model("gpt2", n_positions=20)
    shard = capture_prompt(target, draft, list(range(15)), 0, manner)
    assert len(shard.tokens) == (14 if manner.score else 5)
    if not manner.score:
        with pytest.raises(AdviceError, match="prompt 0 has 20 tokens, and the smaller context is 20; shorten it"):
            capture_prompt(target, draft, list(range(20)), 0, manner)
