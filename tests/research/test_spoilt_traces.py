"""Traces spoilt in one place: `multidraft replay` ends in one line, or shows what is there; never in a traceback."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import ends_with_advice, run
from multidraft_research.audits.trace_reading import read
from spoiling import MISSING, WRONG, loads_or_says_why, places, spoilt

import multidraft as md
from multidraft.decoding.trace import TraceFile
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.zoo import load_pair

OTHERS = {"below": -1, "another": 3, "unknown": 777, "nested": [[1]], "an empty object": {}, "one": 1.0, "no text": ""}


@pytest.fixture(scope="module")
def lines(tmp_path_factory) -> list[Any]:
    """A trace of two rows with accepted, rejected and repeated drafts, coins and verdicts."""
    path = tmp_path_factory.mktemp("traces") / "trace.jsonl"
    target, draft = (TableModel(random_table(5, 3, seed), 5) for seed in (1, 2))
    trace = TraceFile(path, load_pair().tokenizer, {"run": {"seed": 0}})
    seeded: dict[str, Any] = dict(generator=torch.Generator().manual_seed(0), trace=trace)
    md.generate(target, draft, [[0, 1], [2]], scheme="iid:lorenz", tree="2x1", max_new_tokens=4, **seeded)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [record for record in records if record["record"] == "step"]
    assert {record["last"]["kind"] for record in steps} == {"bonus", "recovered"}
    assert any(record["path"] for record in steps)
    assert any("coin" in event for record in steps for event in record["walk"])
    return records


def write(path: Path, records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def replayed(path: Path, *options: object) -> int:
    """The exit code, after a look at what came with it: one line for 2, and no traceback."""
    result = run("replay", path, *options)
    assert result.exit_code in (0, 1, 2), f"{options} ends in {result.exit_code}: {result.stderr}"
    assert result.exit_code != 2 or len(result.stderr.splitlines()) == 1, result.stderr
    return result.exit_code


def test_what_was_written_is_read(lines, tmp_path) -> None:
    path = write(tmp_path / "trace.jsonl", lines)
    options = [(), ("--check",), ("--json",), ("--row", 0, "--step", 1, "--svg", tmp_path / "tree.svg")]
    assert [replayed(path, *words) for words in options] == [0, 0, 0, 0]


@pytest.mark.parametrize("every", [29, pytest.param(1, marks=pytest.mark.slow)])
def test_no_wrong_value_ends_in_a_traceback(lines, tmp_path, every: int) -> None:
    """Every field of a generation, of a step that accepts, of one that rejects, and of the end, with wrong values."""
    path, drawing = tmp_path / "trace.jsonl", ("--row", 0, "--step", 1, "--svg", tmp_path / "tree.svg")
    kinds: dict[Any, int] = {}
    for index, record in enumerate(lines):
        kinds.setdefault((record["record"], record.get("last", {}).get("kind"), bool(record.get("path"))), index)
    wrong_values = [value for name, value in (WRONG | OTHERS).items() if name not in ("long", "gigantic")]
    cases = [
        ((index, *place), wrong)
        for index in kinds.values()
        for place in places(lines[index])
        for wrong in wrong_values
        if place[0] not in ("run", "settings")  # which may be anything, and are not read
    ][::every]
    refused = 0
    for place, wrong in cases:
        write(path, spoilt(lines, place, wrong))
        if loads_or_says_why(lambda: read(path), path):
            codes = [replayed(path, *options) for options in ((), ("--check",), drawing)]
            assert not read(path).flaws or codes == [2, 1, 2]
        else:
            refused += 1
    assert 0.8 < refused / len(cases) < 0.95
    write(path, spoilt(lines, (1, "scheme"), MISSING))
    ends_with_advice(run("replay", path), f"{path} line 2: it lacks scheme")


WRONG_PLACES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "no scheme": ((1, "scheme"), MISSING),
    "a tree without slots": ((1, "tree", "parents"), []),
    "a tree that is none": ((1, "tree", "parents"), [-1, 0, 0, 3, 3]),
    "a temperature below 0": ((1, "sampling", "temperature"), -1),
    "top_k in words": ((1, "sampling", "top_k"), "all"),
    "a prompt's token without text": ((1, "prompts", 0, 0), 777),
    "one row too many": ((-1, "tokens", 0), MISSING),
}


@pytest.mark.parametrize("name", WRONG_PLACES)
def test_check_finds_what_no_trace_says(lines, tmp_path, name: str) -> None:
    assert replayed(write(tmp_path / "trace.jsonl", spoilt(lines, *WRONG_PLACES[name])), "--check") in (1, 2)
