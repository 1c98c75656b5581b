"""Traces: they change nothing, hold all that was decided, and lead to it again; what was tampered with does not."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from multidraft_research.audits.replay import check
from multidraft_research.audits.trace_reading import read
from typer.testing import CliRunner

import multidraft as md
from multidraft.cli.main import app
from multidraft.decoding import trace as recording
from multidraft.decoding.trace import TraceFile
from multidraft.decoding.walks import WALKS, deferred
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.zoo import load_pair

SIZE = 5
PROMPTS = [[0, 1], [2], [3, 3, 3]]
Record = dict[str, Any]


def run(prompts=PROMPTS, drafters=1, seed=0, **settings):
    """Tokens and report of a run with table models."""
    target, *drafts = (TableModel(random_table(SIZE, 3, 1 + n), SIZE) for n in range(1 + drafters))
    settings = dict(tree="3x2x1", max_new_tokens=9, measure=False) | settings
    draft = drafts if drafters > 1 else drafts[0] if drafts else None
    generator = torch.Generator().manual_seed(seed)
    rows, info = md.generate(target, draft, prompts, generator=generator, **settings)
    return [row.tolist() for row in rows], info


def traced(**settings) -> tuple[list[list[int]], list[Record]]:
    """Tokens, and records as they come back from JSON."""
    records: list[Record] = []
    rows, _ = run(trace=records.append, **settings)
    return rows, json.loads(json.dumps(records))


def problems(records: list[Record], **settings) -> list[str]:
    return [reason for _, reason in check(records, **settings)]


CASES = [
    dict(scheme="anchored:lorenz"),
    dict(scheme="iid:lorenz"),
    dict(scheme="iid:recursive_rejection", tree="[[0],[1],[0,0],[0,1],[1,0]]"),
    dict(scheme="without_replacement:recursive_rejection", tree="2x2"),
    dict(scheme="top:naive", temperature=0),
    dict(scheme=md.scheme("anchored:lorenz", draft_probability=0.5), top_k=2),
    dict(scheme="distinct:recursive_rejection", drafters=2, tree="3x2"),
    dict(repetition_penalty=1.3, min_p=0.05),
    dict(drafters=0),
]


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("case", CASES)
def test_a_trace_changes_nothing_and_replays_to_the_same_tokens(case, walk):
    rows, records = traced(**case, walk=walk)
    assert rows == run(**case, walk=walk)[0]
    assert problems(records) == []
    assert [record["record"] for record in records] == ["generation", *["step"] * (len(records) - 2), "end"]
    assert records[-1]["tokens"] == rows
    for row, tokens in enumerate(rows):
        assert tokens_of(records, row)[: len(tokens)] == tokens


def tokens_of(records: list[Record], row: int) -> list[int]:
    """The tokens that a row's steps emit."""
    steps = [record for record in records if record["record"] == "step" and record["row"] == row]
    tokens = []
    for record in steps:
        held = {node["node"]: node["token"] for node in record["nodes"]}
        tokens += [*(held[slot] for slot in record["path"]), record["last"]["token"]]
    return tokens


def test_drafts_come_with_their_probabilities_and_numbers():
    """Both tables are known, so every probability can be looked up, and every draw taken again."""
    _, records = traced(prompts=[[0, 1]], scheme="iid:lorenz")
    target, draft = random_table(SIZE, 3, 1), random_table(SIZE, 3, 2)
    text, seen = [0], 0
    for record in records[1:-1]:
        prefix = {node["node"]: () for node in record["nodes"]}
        for node in record["nodes"]:
            prefix[node["node"]] = (*prefix.get(node["above"], text), node["token"])
            if "drafted" in node:
                for name, table in ("target", target), ("draft", draft):
                    probabilities = table(prefix[node["node"]])[node["drafted"]]
                    assert node[name] == pytest.approx(probabilities.tolist(), abs=1e-12)
                cumulative = draft(prefix[node["node"]]).cumsum(0)
                numbers = torch.tensor([number for line in node["numbers"] for number in line], dtype=torch.float64)
                assert torch.searchsorted(cumulative, numbers, right=True).tolist() == node["drafted"]
                seen += 1
        text += [record["nodes"][0]["token"], *(prefix[slot][-1] for slot in record["path"])]
    assert seen > 10


def coin_of(record: Record) -> Record | None:
    """A coin of the step that might well have fallen otherwise."""
    return next((event for event in record.get("walk", ()) if 0.01 < event.get("coin", 0) < 0.4), None)


def slightly(record: Record, key: str) -> None:
    record[key] = record[key] * (1 - 1e-9)


def another(node: Record) -> None:
    node["token"] = (node["token"] + 1) % SIZE


def turn(coin: Record) -> None:
    """A number that answers otherwise."""
    coin["number"] = coin["coin"] / 2 if coin["number"] >= coin["coin"] else (1 + coin["coin"]) / 2


def leave(last: Record) -> None:
    """A number that draws another token."""
    low, high = last["from"] / last["of"], last["to"] / last["of"]
    last["number"] = low / 2 if low > 0 else (1 + high) / 2


TAMPERED = {
    "a coin's probability": lambda r: slightly(coin_of(r), "coin"),
    "a coin's number": lambda r: turn(coin_of(r)),
    "a coin's answer": lambda r: coin_of(r).update(yes=not coin_of(r)["yes"]),
    "the weight at a node": lambda r: slightly(r["walk"][0], "weight"),
    "the node visited": lambda r: r["walk"][0].update(node=1),
    "a missing event": lambda r: r["walk"].pop(),
    "one event too many": lambda r: r["walk"].append(r["walk"][-1]),
    "the path": lambda r: r["path"].pop(),
    "an accepted token": lambda r: another(r["nodes"][r["path"][0]]),
    "the last token": lambda r: another(r["last"]),
    "the last number": lambda r: leave(r["last"]),
    "the kind of the last token": lambda r: r["last"].update(kind=r["last"]["kind"] + "?"),
    "the step": lambda r: r.update(step=7),
    "the root": lambda r: another(r["nodes"][0]),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_what_was_tampered_with_is_found_by_taking_the_walk_again(what):
    _, records = traced(prompts=[[0, 1]], scheme="iid:lorenz", tree="2x1", max_new_tokens=16)
    place = next(i for i, record in enumerate(records) if record.get("path") and coin_of(record))
    changed = copy.deepcopy(records)
    TAMPERED[what](changed[place])
    assert problems(records) == []
    assert problems(changed) != []


def test_a_walk_of_ones_own_is_checked_with_it():
    def careful(node, weight, has_drafts, coin):
        return deferred(node, weight, has_drafts, coin, smallest=0.0)

    _, records = traced(walk=careful)
    with pytest.raises(md.AdviceError, match="walk of yours"):
        problems(records)
    assert problems(records, walk=careful) == []
    assert problems(records, walk=deferred) != []


def test_without_a_trace_none_of_its_code_runs(monkeypatch):
    def never(*_, **__):
        raise AssertionError("tracing")

    for name in ("describe_step", "describe"):
        monkeypatch.setattr(recording, name, never)
    assert run()[0]
    with pytest.raises(AssertionError, match="tracing"):
        run(trace=print)


def invoke(*arguments: object):
    """The result of `multidraft ...`."""
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> tuple[Path, Record]:
    """A trace of two prompts and the embedded pair, and what the run reported."""
    folder = tmp_path_factory.mktemp("trace")
    lines = [json.dumps({"id": str(n), "prompt": text}) for n, text in enumerate(["It was a dark", "çà 😀 and"])]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    settings = ["--prompts", folder / "prompts.jsonl", "--tree", "2x1", "--max-new-tokens", 10, "--json"]
    result = invoke("generate", *settings, "--trace", folder / "trace.jsonl")
    assert result.exit_code == 0, result.output
    return folder / "trace.jsonl", json.loads(result.stdout)


def test_a_file_has_the_steps_of_all_prompts_and_the_pieces_of_their_tokens(file):
    trace, report = read(file[0]), file[1]
    assert trace.records[0]["run"] | {"prompts": 2} == report["settings"]
    assert trace.records[0]["versions"] == report["versions"]
    assert [record["first_row"] for record in trace.records if record["record"] == "generation"] == [0, 1]
    assert {record["row"] for record in trace.steps(None, None)} == {0, 1}
    assert len(list(trace.steps(None, None))) == report["target_passes"] + 2  # two prompts: step 0 is the first token
    texts = ["".join(trace.pieces[t] for t in r["tokens"][0]) for r in trace.records if r["record"] == "end"]
    # tokens that are part of a character go by their names, which are not ASCII either
    assert list(map(ascii_of, texts)) == [ascii_of(record["text"]) for record in report["records"]]


def ascii_of(text: str) -> str:
    """The text without all other characters."""
    return text.encode("ascii", "ignore").decode()


def test_replay_shows_a_step_as_a_tree_and_passes_records_through(file):
    result = invoke("replay", file[0], "--row", 1, "--step", 1)
    assert result.exit_code == 0, result.output
    (record,) = read(file[0]).steps(1, 1)
    lines = result.stdout.splitlines()
    assert lines[0] == "── row 1, step 1 ──"
    assert sum("  draft " in line for line in lines) == len(record["nodes"]) - 1
    assert sum("accepted" in line for line in lines) == len(record["path"])
    assert sum("coin of" in line for line in lines) == sum("coin" in e for e in record["walk"])
    assert record["last"]["kind"] in result.stdout
    shown = [json.loads(line) for line in invoke("replay", file[0], "--json", "--row", 0).stdout.splitlines()]
    assert shown == list(read(file[0]).steps(0, None))


def test_check_passes_what_was_written_and_finds_what_was_changed(file, tmp_path):
    assert invoke("replay", file[0], "--check").exit_code == 0
    lines = file[0].read_text().splitlines()
    record = json.loads(lines[3])
    leave(record["last"])
    lines[3] = json.dumps(record, ensure_ascii=False)
    (tmp_path / "changed.jsonl").write_text("\n".join(lines) + "\n")
    result = invoke("replay", tmp_path / "changed.jsonl", "--check", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["problems"][0].startswith("row 0, step 1: number")


def test_wrong_files_meet_with_advice(file, tmp_path):
    (tmp_path / "text.jsonl").write_text("once upon a time\n")
    (tmp_path / "other.jsonl").write_text('{"id": 1}\n')
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe\xff\n")
    for name in ("text", "other", "empty", "bytes", "none"):
        for options in ((), ("--check",), ("--json",)):
            result = invoke("replay", tmp_path / f"{name}.jsonl", *options)
            assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
    result = invoke("replay", file[0], "--row", 9)
    assert (result.exit_code, "no such step" in result.stderr) == (2, True)
    result = invoke("generate", "--prompt", "x", "--trace", tmp_path)
    assert (result.exit_code, "choose another path" in result.stderr) == (2, True)


def test_a_killed_run_leaves_a_readable_file(tmp_path):
    """Each line is in the file at once: it is read while it is open, and torn as a kill may tear it."""
    file = tmp_path / "trace.jsonl"
    writer = TraceFile(file, load_pair().tokenizer, {})

    def tell(record):
        writer(record)
        if record.get("step") == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(trace=tell, prompts=[[0]], max_new_tokens=99)
    with file.open("a") as end:
        end.write('{"record": "st')
    trace = read(file)
    assert trace.cut
    assert [record["step"] for record in trace.steps(None, None)] == [0, 1, 2, 3, 4, 5]
    assert not trace.flaws
    assert problems(trace.records) == []
    shown = invoke("replay", file, "--step", 1)
    assert (shown.exit_code, "cut off" in shown.stderr) == (0, True)
