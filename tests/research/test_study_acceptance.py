"""The table of acceptance rates: what it says agrees with the rules, and the command prints it."""

import json

import pytest
from captures import keep
from commands import run
from multidraft_research.studies.acceptance import cases, measure, random_pairs

import multidraft as md


def test_lines_agree_with_the_schemes() -> None:
    pairs = random_pairs(6, 50, seed=1)
    lines = {(li.scheme, li.drafts): li for li in measure(pairs, cases([1.0], [2, 3]))}
    p, q = pairs.target.double().softmax(-1), pairs.draft.double().softmax(-1)
    rate = float(md.optimal_acceptance_rate(p, q, law="iid", drafts=3).mean())
    assert lines["iid:lorenz", 3].acceptance_rate == pytest.approx(rate, abs=1e-12)
    assert lines["iid:lorenz", 3].optimal_acceptance_rate == pytest.approx(rate, abs=1e-12)
    assert ("spechub:spechub", 2) in lines
    assert ("spechub:spechub", 3) not in lines
    for line in lines.values():
        noise = (
            0.0 if line.method == "formula" else 5 * line.standard_error
        )  # beyond which one in 10^6 lies, and no seed
        assert line.acceptance_rate <= line.optimal_acceptance_rate + noise + 1e-9, line


def test_command_prints_json(tmp_path) -> None:
    folder = keep(tmp_path, random_pairs(4, 30, seed=0))
    arguments = ["acceptance", "--capture", str(folder), "--temperature", "1", "--drafts", "2"]
    result = run(*arguments, "--json")
    assert result.exit_code == 0
    names = {line["scheme"] for line in json.loads(result.stdout)["results"]}
    assert {"anchored:lorenz", "without_replacement:recursive_rejection"} <= names
    table = run(*arguments)
    assert table.exit_code == 0
    assert "anchored:lorenz" in table.stdout


def test_missing_capture_gets_advice() -> None:
    result = run("acceptance", "--capture", "nowhere")
    assert result.exit_code == 2
    assert "multidraft capture" in result.stderr
