"""The benchmark with llama.cpp: a run that is stopped goes on, and its tables say what the file says. No clock."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import ggufs  # noqa: F401  # skips where llama.cpp is not installed
import local
import pytest
from local import AUTO, CASES, PLAIN

FEW = ["--prompts", "3", "--temperature", "0", "1", "--layers", "3", "--kinds", "f16", "--threads", "1", "2"]


class Paced:
    """Everyone decodes at a known pace, until Ctrl-C comes after `limit` runs."""

    def __init__(self) -> None:
        self.runs, self.limit = 0, None

    def __call__(self, models, case, prompt, temperature, seed, new) -> dict:
        if self.runs == self.limit:
            raise KeyboardInterrupt
        self.runs += 1
        return dict(tokens=10, seconds={PLAIN: 1.0, AUTO: 0.5}.get(case, 2.0))


@pytest.fixture(autouse=True)
def paced(monkeypatch) -> Paced:
    """In place of models."""
    pair = SimpleNamespace(target=None, draft=None)
    monkeypatch.setattr(local, "loaded", lambda options: nullcontext({(3, "f16"): pair}))
    monkeypatch.setattr(local, "prepare", lambda models, prompts: None)
    monkeypatch.setattr(local.llama_plain, "pass_times", lambda *_: {1: [9.0, 0.001, 0.001], 8: [9.0, 0.002, 0.002]})
    monkeypatch.setattr(local, "decode", runs := Paced())
    return runs


def turns(file: Path) -> list[tuple]:
    return [local.place_of(json.loads(line)) for line in file.read_text().splitlines()[1:]]


def test_a_stopped_run_goes_on_where_it_was(paced, tmp_path, capsys):
    file, page = tmp_path / "runs.jsonl", tmp_path / "page.md"
    paced.limit = 2 * len(CASES) + 25  # the warm-up comes first
    with pytest.raises(SystemExit) as stopped:
        local.main([str(file), *FEW])
    assert stopped.value.code == 130
    assert len(turns(file)) == 2 + 25
    paced.limit = None
    page.write_text("\n".join(["before", *local.MARKS, "after"]))
    local.main([str(file), *FEW, "--into", str(page)])
    assert len(set(turns(file))) == len(turns(file)) == 2 + 2 * 2 * 3 * len(CASES)
    text = page.read_text()
    assert text.count("| llama.cpp, plain |  | 10 (10 to 10) a second | 10 (10 to 10) a second |") == 2
    assert text.count("| `anchored:lorenz` | auto | 2.00 (2.00 to 2.00) | 2.00 (2.00 to 2.00) |") == 2
    assert "**3 layers, f16, 2 threads**" in text
    assert "| over one token's | 1.00 | 2.00 |" in text
    assert text.endswith("after")


def test_other_settings_do_not_go_into_the_same_file(tmp_path):
    file = tmp_path / "runs.jsonl"
    local.main([str(file), *FEW])
    with pytest.raises(SystemExit, match="new_tokens"):
        local.main([str(file), *FEW, "--new-tokens", "5"])
    with pytest.raises(SystemExit, match="holds no results"):
        local.main(["--show", str(local.PROMPTS)])
