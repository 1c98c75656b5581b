"""Malformed calls, made from the commands' own options: each ends with one line that says what to do, before any work.

Every option of every command is given what is wrong for its kind. What is wrong for a small language (trees, schemes,
drafters, sizes), a kind of number or a kind of file is tried with the first option that takes it, and one thing of it
with every other one. Whatever would be work fails the test.
"""

import json
import shlex
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
import typer
from multidraft_research.studies.listed import LISTED
from safetensors.torch import save
from transformers import PreTrainedModel
from typer.testing import CliRunner

from multidraft.cli.main import app

Call = list[str]
HALF = "\udcff"  # what Python makes of a byte that is not UTF-8
LONG = "x" * 5000
WHOLE = ["x", "1.5", "nan", "inf", "", "-1", "9" * 30, "9" * 5000]
REAL = ["x", "nan", "inf", "-inf", "", "-1", "1e300", "1e999"]
INPUT = ["@none", "@", "@garbage", "@bytes", "@empty", "@name-" + LONG, ""]
OUTPUT = ["@", "@none/x.svg", "@text.txt/x.svg", f"@{LONG}.svg", ""]
WITH_FOLDER = ("capture", "distill", "export-head", "train", "train-head", "study acceptance", "study solve-time")
FOLDER = ["@text.txt", "@text.txt/x", "@" + LONG]
SCHEME = ["", ":", "iid", "iid:magic", "magic:lorenz", "top:lorenz", "iid:lorenz,x=1", "iid:lorenz,x", "iid:lorenz,"]
SCHEME += [f"anchored:lorenz,anchors={value}" for value in ("x", "1.5", "true", "[]", "9" * 5000, "[" * 50_000)]
SCHEME += [f"anchored:lorenz,draft_probability={value}" for value in ("x", "0", "-1", "2", "nan", "null")]
SCHEME += ["anchored:lorenz,top_up=no", "iid:global_resolution,tolerance=x", "iid:global_resolution,fallback=3", HALF]
TREE = ["", *"x 0 4x0 4x -1 1.5 4y2 [] {} [[]] [[],[0]] [0] [[0.5]] [[true]] [[-1]] [[1]] null NaN [[0],[0,2]]".split()]
TREE += ['["0"]', "9" * 24, "9" * 5000, "[" * 100_000, "[[" + "9" * 5000, "64x64x64", "9999 paths of 9", "0 paths of 3"]
TREE += ["2 paths of 0", "2 paths of " + "9" * 24, HALF]
DRAFT = ["", ",", "+", "ngram+", "ngram,", "0.5*ngram", "0.5*", "*ngram", "2*ngram+-1*lookup", "0.5*ngram+0.6*lookup"]
DRAFT += ["0.5*ngram+lookup", "ngram:0", "ngram:x", "ngram:" + "9" * 400, "lookup:0", "layers", "layers:0", "@none"]
DRAFT += ["ngram,lookup", "9" * 400 + "*ngram+1*lookup", HALF, "owner/model", "a/b/c", "a/b:c:d"]
SIZE = ["", "x", "64", "64x", "x2", "63x2", "0x2", "64x0", "-64x2", "64x2x2", "²x2", "9" * 30 + "x2", "64x" + "9" * 30]
PROBLEM = ["", "x", "10", "10,", ",2", "0,2", "10,0", "-10,2", "10,2,2", "²,2", "9" * 30 + ",2"]
TEXT: dict[str, list[str]] = {  # by the name of the option; of those that are left out, the empty text
    "scheme": SCHEME,
    "name": [text for text in SCHEME if "draft_probability" not in text],  # which has an option there
    "tree": TREE,
    "trees": TREE,
    "draft": DRAFT,
    "target": ["", "@none", "@", "a/b/c", HALF],
    "corpus": ["", "@none", "@garbage", "@bytes", "@empty", HALF],
    "target_size": SIZE,
    "draft_size": SIZE,
    "size": PROBLEM,
    "method": ["", "magic", HALF],
    "stop": ["", HALF],
    "prompt": [HALF],
    "start": ["", "x", "medusa:", "medusa:@none", HALF],
    "ray": ["", "x", ":", "x:y", "127.0.0.1:1", "127.0.0.1:" + "9" * 30, HALF],
}
PROMPTS = {"garbage": b"\x00\x01{", "bytes": b"\xff\xfe\xff\n", "blank": b"\n \n", "list": b"[]\n"}
PROMPTS |= {"text": b"once upon a time\n", "nameless": b'{"id": 1}\n', "not-text": b'{"prompt": 1}\n'}
PROMPTS |= {"torn": b'{"prompt": "a', "surrogate": b'{"prompt": "\\ud800"}\n', "deep": b"[" * 100_000}
PROMPTS |= {"surrogate-id": b'{"id": "\\udfff", "prompt": "a"}\n'}
PROMPTS |= {"digits": b'{"prompt": "a", "id": ' + b"1" * 5000 + b"}\n"}
GIVEN = {  # for each command: options with nothing wrong, and what is wrong only together, apart by semicolons
    "acceptance": (
        "",
        "--capture @good --target @ --draft @; --capture @good --random 1; --random 1 --draft x; --drafts 65; "
        "--drafts 2 --drafts 0; --temperature 1 --temperature 1e-9; --random 0 --draft x",
    ),
    "audit": ("iid:lorenz", "--all; iid:kseq; --vocabulary 4294967296; --drafts 4000000000"),
    "capture": ("--out @run", "--out ''; --show @good; --target x; --draft x; --temperature 1e-9"),
    "distill": ("--capture @changed.capture --out @run", "--capture @unfinished.capture; --steps 1"),
    "generate": (
        "--prompt the",
        "--limit 1; --prompts @good.jsonl; --chat --prompts @good.jsonl; --trace @same --jsonl @same; "
        "--target @none --draft @none; --target @ --draft @; --target a/b/c --draft a/b/c; --top-p 1.5; "
        "--min-p 2; --top-n-sigma -2; --repetition-penalty 0; --temperature 1e-9; --jsonl @text.txt; "
        "--jsonl @other.jsonl; --jsonl @no-line; --prompt '' --stop a --stop ''; --plan /dev/zero; "
        "--prompts /dev/zero; --target @endless --draft ngram; --engine magic; --engine llama.cpp; "
        "--target @none.gguf --draft ngram; --target owner/model:Q8_0 --draft ngram; --target embedded --revision v1; "
        "--corpus @text.txt --draft ngram; "
        "--draft smollm2 --target embedded; --draft none+ngram; --draft none --plan @good.jsonl; "
        "--compare --baselines vllm; --threads 0; --threads 100000",
    ),
    "replay": ("@trace.jsonl", "--row 9; --step 9"),
    "schemes": ("", "x"),
    "serve": (
        "--port 0",
        "--host ''; --host 'no such host'; --served-model-name ''; --plan @none; --plan x --tree 2x1; "
        "--host 203.0.113.7; --api-key ''; --chat-template @broken.jinja; --draft ngram,lookup; "
        "--target @none --draft @none; --target x; --port 70000; --threads 0; --threads 100000; --replicas 2; "
        "--remember 5 --draft none; "
        "--most-replicas 2; --ray local --replicas 3 --most-replicas 2",
    ),
    "export-head": ("eagle3:@none --out @run", "--target x; --target @none; --out @good.jsonl"),
    "train": (
        "--corpus @text.txt --out @run",
        "--window 5000; --vocabulary 9999999; --corpus @short.txt; --target @none; "
        "--target embedded --target-size 64x2; --target embedded --vocabulary 300",
    ),
    "train-head": (
        "--kind medusa --target @none --out @run --text @text.txt",
        "--self; --kind magic; --start eagle3:smollm2; --start medusa:@none",
    ),
    "tune": (
        "",
        "--prompt x --prompts @good.jsonl; --scheme spechub:spechub; --scheme distinct:naive; --plot @new.txt; "
        "--out @none/plan.json; --what-if 2; --what-if nan; --what-if 0.5 --drafter-share -1; --engine magic; "
        "--what-if 0.5 --draft none; --what-if 0.5 --out @new.json; --what-if 0.5 --target @none",
    ),
    "study acceptance": ("--out @run", "--capture @good --draft x; --target x; --draft embedded --draft x"),
    "study curves": ("--out @new.svg", "--out @new.txt; --out @new; --out @good.jsonl --prompts @good.jsonl"),
    "study solve-time": ("--out @run", "--plot @new.txt"),
    "study toys": ("--out @new.svg", "--out @new.txt; --out @new"),
    "study walks": ("", "--tree 8x8; --vocabulary 100; --scheme distinct:naive"),
}
BASE = {name: shlex.split(base) for name, (base, _) in GIVEN.items()}
MANY = [["--stop", "x" * 100_000], [word for number in range(3000) for word in ("--stop", str(number))]]


def commands() -> dict[str, Any]:
    """All of them, by name; those of a group with its name before theirs."""
    group: Any = typer.main.get_command(app)
    groups = {name: group.get_command(None, name) for name in group.list_commands(None) if name != "judge"}
    return {name: command for name, command in groups.items() if not hasattr(command, "commands")} | {
        f"{name} {subcommand}": command
        for name in groups
        for subcommand, command in getattr(groups[name], "commands", {}).items()
    }


def kind_of(annotation: Any) -> Any:
    """The one type that is left of `T | None` or `list[T]`."""
    inner = [kind for kind in get_args(annotation) if kind is not type(None)]
    return kind_of(inner[0]) if inner else annotation


COMMANDS = commands()


def bad_values(command: str, name: str, kind: Any, tried: set[Any]) -> list[str]:
    """What is wrong for an option, by its kind and name; of what another option was given already, one."""
    if command in WITH_FOLDER and name == "out":
        return FOLDER
    if issubclass(kind, Path):
        values, key = (OUTPUT, "out") if name in ("out", "trace", "jsonl", "plot") else (INPUT, name)
    elif kind is str:
        values, key = TEXT.get(name, []), id(TEXT.get(name))
    else:
        values, key = {int: WHOLE, float: REAL}.get(kind, ["magic", "", "x"]), kind
    few_values = [value for value in values if value in ("-1", "@none", "magic")] or values[:1]
    chosen_values = few_values if key in tried else values
    tried.add(key)
    return chosen_values


def calls_of(name: str, tried: set[Any]) -> Iterator[Call]:
    """All malformed calls of a command."""
    names, base, command, first = name.split(), BASE[name], COMMANDS[name], name == "generate"
    hints = get_type_hints(command.callback)
    yield [*names, *base, "--magic"]
    yield [*names, *base, "one", "too many"]
    for parameter in command.params:
        if parameter.name == "help":
            continue
        option, kind = max(parameter.opts, key=len), kind_of(hints[parameter.name])
        values, other_options = bad_values(name, parameter.name, kind, tried), without(base, option)
        if not option.startswith("--"):
            yield from ([*names, value] for value in values)
        elif kind is bool:
            yield from [[*names, *base, f"{option}=1"]] if first else []
        else:
            yield from [[*names, *other_options, option]] if first else []
            yield from ([*names, *other_options, f"{option}={value}"] for value in values)
        if option == "--prompts":
            files = PROMPTS if first else ["nameless"]
            yield from ([*names, *without(base, "--prompt"), option, f"@{file}.jsonl"] for file in files)
    together = map(shlex.split, GIVEN[name][1].split(";"))
    yield from ([*names, *base, *words] for words in (*together, *(MANY if first else ())))


def without(call: Call, option: str) -> Call:
    """A call without an option and its value."""
    if option not in call:
        return call
    place = call.index(option)
    return call[:place] + call[place + 2 :]


def lines(*records: object) -> bytes:
    """JSON lines."""
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def traces() -> dict[str, bytes]:
    """Traces whose every line is whole, in an order or of a form that nobody wrote."""
    step = {"record": "step", "row": 0, "step": 0, "nodes": [], "walk": [], "path": [], "last": {}}
    generation = {"record": "generation", "first_row": 0, "prompts": [[1]], "walk": "deferred"}
    first, other = {"record": "trace", "format": 2}, {"record": "trace", "format": 1}
    lists: dict[str, list[dict[str, Any]]] = {"swapped": [first, step, generation], "of-another-format": [other]}
    lists |= {"skipped": [first, generation, step | {"step": 1}], "strange": [first, {"record": "dream"}]}
    lists |= {"rowless": [first, generation, {"record": "step"}], "wrong-pieces": [first | {"pieces": {"x": 1}}]}
    lists |= {"wrong-kinds": [first, generation, step | {"row": "0"}]}
    return {name: lines(*records) for name, records in lists.items()}


def shards() -> dict[str, bytes]:
    """Shards of captures that are none."""
    logits = torch.zeros(2, 5)
    ids = {"prompt": torch.tensor([1]), "tokens": torch.tensor([2, 3])}
    kept = {"kept": torch.tensor([[0], [9]]), "target_rest": torch.zeros(2), "draft_rest": torch.zeros(2)}
    pairs = {"flat": (logits[0], logits[0]), "none": (logits[:0], logits[:0]), "nan": (logits, logits + torch.nan)}
    pairs |= {"nothing": (logits - torch.inf, logits), "vocabulary": (logits[:, :4], logits[:, :4])}
    parts = {name: dict(zip(("target", "draft"), pair, strict=True)) for name, pair in pairs.items()}
    parts |= {"one": {"target": logits}, "outside": {"target": logits[:, :1], "draft": logits[:, :1]} | kept}
    files = {
        name: save(ids | {role: part.clone() for role, part in tensors.items()}) for name, tensors in parts.items()
    }
    return files | {"text": b"once upon a time", "empty": b"", "torn": files["one"][:-3]}


def captures() -> dict[str, tuple[bytes, bytes]]:
    """Manifests and their only shards, of which none is right; those of `shards` have a right manifest."""
    first = {"capture": 1, "vocabulary": 5, "prompts": 1}
    line = {"file": "0", "bytes": 1, "id": "", "task": "", "positions": 2, "target_loss": 0.0, "draft_loss": 0.0}
    signed = line | {"sha256": ""}
    wrong: dict[str, list[dict[str, Any]]] = {"no-manifest": [], "other-format": [first | {"capture": 2}]}
    wrong |= {"no-vocabulary": [first | {"vocabulary": "5"}], "no-prompts": [first | {"prompts": 0}]}
    wrong |= {"unfinished": [first], "no-number": [first, signed | {"positions": "2"}], "changed": [first, signed]}
    wrong |= {"elsewhere": [first, signed | {"file": "../0"}], "no-shard": [first, signed | {"file": "9"}]}
    files = {name: (lines(*records), b"") for name, records in wrong.items()} | {"garbage-manifest": (b"\xff\n", b"")}
    for name, shard in shards().items():
        files[name] = lines(first, line | {"sha256": sha256(shard).hexdigest()}), shard
    return files


ALIKE = {f"study {name}" for name in (*LISTED, "all")} - {"study acceptance"}  # made by one function, as it is
TRIED: set[Any] = set()
CALLS = [
    call for name in sorted(COMMANDS, key="generate".__ne__) if name not in ALIKE for call in calls_of(name, TRIED)
]
CALLS += [["replay", f"@{name}.trace"] for name in traces()] + [["replay", "@swapped.trace", "--json"]]
CALLS += [["capture", "--show", f"@{name}.capture"] for name in captures()]
CALLS += [["acceptance", "--capture", "@unfinished.capture"]]
CALLS += [["study", "solve-time", "--capture", "@no-number.capture"]]
CALLS += [["magic"], ["--magic"], [""], ["study"], ["study", "magic"], ["study", "--magic"], ["--version=1"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """All the files that calls name with an @."""
    folder = tmp_path_factory.mktemp("bad")
    files = {"garbage": b"\x00\x01{", "bytes": b"\xff\xfe\xff\n", "empty": b"", "no-line": b"one line that matters"}
    files |= {"text.txt": b"once upon a time\n", "good.jsonl": b'{"id": "1", "prompt": "the"}\n', "short.txt": b"a\nb"}
    files |= {"other.jsonl": b'{"results": "multidraft generate", "tree": "9"}\n', "broken.jinja": b"{% for x in %}"}
    files |= {f"{name}.jsonl": content for name, content in PROMPTS.items()}
    files |= {f"{name}.trace": content for name, content in traces().items()}
    files |= {"endless/config.json": b'{"model_type": "llama", "num_hidden_layers": 10000000}'}
    files |= {f"{name}.capture/manifest.jsonl": manifest for name, (manifest, _) in captures().items()}
    files |= {f"{name}.capture/0": shard for name, (_, shard) in captures().items()}
    files |= {"trace.jsonl": lines({"record": "trace", "format": 2})}
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


WORK = ("cli.executors.run", "cli.acceptance.measure_lines", "cli.solve_time.measure_cases")
WORK += ("training.recipe.train_model", "studies.walks.measure", "studies.toys.figures")


@pytest.fixture(autouse=True)
def nothing_works(monkeypatch) -> None:
    """Whatever would be work raises what no command catches; no hub answers."""

    def work(*_: object, **__: object) -> None:
        raise AssertionError("work was begun")

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", work)
    monkeypatch.setattr("multidraft.cli.engines.hub_answers", lambda: False)
    for place in WORK:
        monkeypatch.setattr(f"multidraft_research.{place}", work)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("call", CALLS, ids=lambda call: ascii(" ".join(part[:40] for part in call)))
def test_a_malformed_call_ends_with_one_line_that_says_what_to_do(call, folder):
    before = contents(folder)
    result = CliRunner().invoke(app, [part.replace("@", f"{folder}/") for part in call])
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith("loading ")]  # as `serve` says first
    assert line.startswith("multidraft: ")
    assert len(line) < 1000
    assert contents(folder) == before


def contents(folder: Path) -> dict[Path, tuple[int, int]]:
    """The files of a folder, each with its size and when it was changed last."""
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir() if path.is_file()}


def test_every_command_and_every_option_is_called():
    assert len(CALLS) > 300
    assert set(COMMANDS) - ALIKE == set(GIVEN)
    same = [[parameter.opts for parameter in COMMANDS[name].params] for name in (*ALIKE, "study acceptance")]
    assert all(options == same[0] for options in same)
