"""`make gpu`: what is done is not run again, what goes on is begun again, and the report says what is known so far."""

import json
from argparse import Namespace
from pathlib import Path

import gpu
import pytest
from on_gpu import report, trained
from on_gpu.asked import PieceOptions
from on_gpu.pieces import Piece

from multidraft.io.journal import Journal

PIECES = [
    Piece("first", ""),
    Piece("steady", "", goes_on=True, process="shared"),
    Piece("broken", "", process="shared"),
]
PIECES += [Piece("last", "")]
SETTINGS = dict(
    device="cpu", quick=True, commit="0123abc", hardware=dict(cpu="a CPU", threads=1), versions=dict(torch="2")
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch) -> list[str]:
    """Runs all pieces once; returns which were begun, by what a made-up process says of them."""
    begun: list[str] = []

    def process(pieces: list[Piece], options: Namespace, limit: float) -> list[dict]:
        """Of pieces that share a process, those after one that takes all the time are not come to."""
        records = []
        for piece in pieces:
            begun.append(piece.name)
            slow = piece.name == "steady" and begun.count("steady") < 3
            status = "out of time" if slow else "failed" if piece.name == "broken" else "done"
            lines = [dict(speed=1.5, way=None)] * (status == "done")
            records.append(dict(piece=piece.name, status=status, why="", lines=lines, seconds=1.0))
            if slow:
                break
        return records

    for module in (gpu, report):
        monkeypatch.setattr(module, "PIECES", PIECES)
    monkeypatch.setattr(gpu, "in_a_process", process)
    return begun


def go(out: Path, seconds: float = 3600.0) -> list[str]:
    """What has failed."""
    end = gpu.time.monotonic() + seconds
    run = gpu.Run(Namespace(out=out, quick=True), Journal(out / "pieces.jsonl", SETTINGS), end)
    run.go()
    return run.failed


def test_what_is_done_is_not_run_again(tmp_path: Path, run: list[str]) -> None:
    assert go(tmp_path) == ["broken"]
    assert run == ["first", "steady", "steady", "steady", "broken", "last"]
    go(tmp_path)
    assert run[6:] == ["broken"]
    text, data = (tmp_path / "report.md").read_text(), json.loads((tmp_path / "report.json").read_text())
    assert "commit 0123abc" in text
    assert "| 1.5 |  |" in text
    statuses = dict(first="done", steady="done", broken="failed", last="done")
    assert {name: piece["status"] for name, piece in data["pieces"].items()} == statuses
    go(tmp_path / "late", seconds=0.0)
    assert run[7:] == []  # no piece begins when the time is over


@pytest.mark.slow
def test_a_pair_is_trained_and_scored(tmp_path: Path) -> None:
    [line] = trained.measure(PieceOptions("cpu", True, tmp_path, None))
    assert line["target_bits_per_byte"] > 0
    assert trained.load(PieceOptions("cpu", True, tmp_path, None)).draft.num_parameters() == line["parameters"]["draft"]
