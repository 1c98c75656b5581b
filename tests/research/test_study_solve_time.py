"""The solve-time study: exactness of what it reports, stopping, resuming, and what it prints."""

import json
from pathlib import Path

import pytest
from captures import keep
from commands import ends_with_advice, run
from multidraft_research.solvers.linear_program import OutOfTime, linear_program
from multidraft_research.solvers.network import iid_network
from multidraft_research.studies import solve_time
from multidraft_research.studies.acceptance import random_pairs
from multidraft_research.studies.solve_time import measure, power_law_pairs, tasks
from multidraft_research.studies.solve_time_table import lines
from multidraft_research.studies.solvers import closed_facts, methods
from pairs import random_pair
from torch import Tensor

from multidraft.verification.laws import Iid
from multidraft.verification.outcome import Outcome
from multidraft.verification.rules import naive, rate_of_iid

EXACT = ("lorenz", "max_flow", "reduced_max_flow", "linear_program", "k_sequential", "recursive_rejection", "naive")
OPTIMAL = EXACT[:4]
PAIRS = {"recorded": random_pairs(4, 12, 0)}


@pytest.fixture
def recording(tmp_path) -> Path:
    return keep(tmp_path / "capture", PAIRS["recorded"])


@pytest.fixture(autouse=True)
def few_synthetic_pairs(monkeypatch, unchecked) -> None:
    monkeypatch.setattr(solve_time, "POSITIONS", 4)
    monkeypatch.setattr(solve_time, "VOCABULARY", 300)


def study(recording: Path, *arguments: object):
    out = recording.parent / "run"
    asked = ["study", "solve-time", "--capture", recording, "--out", out, "--tokens", 2, *arguments]
    return run(*asked)


def by_method(result) -> dict[tuple[str, int, int, str], dict]:
    assert result.exit_code == 0, result.output
    return {(r["source"], r["k"], r["n"], r["method"]): r for r in json.loads(result.stdout)["results"]}


def test_every_method_is_as_exact_as_it_says_and_the_paper_s_numbers_stand_beside_ours(recording) -> None:
    picture = recording.parent / "times.svg"
    result = study(recording, "--size", "3,2", "--size", "4,3", "--plot", picture, "--json")
    found, report = by_method(result), json.loads(result.stdout)
    assert len(found) == 2 * 2 * 11
    for (*_, method), line in found.items():
        assert line["tried"] == line["solved"] == 2
        assert min(line["milliseconds"], line["over_lorenz"]) > 0
        if method in EXACT:
            assert line["total_variation"] <= 1e-9
            assert line["share"] <= 1 + 1e-9
        if method in OPTIMAL:
            assert line["share"] == pytest.approx(1, abs=1e-9)
        if method.startswith("global"):
            tolerance = float(method.split()[1])
            assert line["total_variation"] <= 7.5 * tolerance
            assert abs(line["acceptance_rate"] - line["acceptance_rate"] / line["share"]) <= 10 * tolerance
    assert picture.read_text().startswith("<?xml")
    table = study(recording, "--size", "3,2", "--size", "4,3").stdout
    assert "synthetic: milliseconds for a token" in table
    assert report["printed_in_the_paper"]["solve_times"]["Llama-3 70B/8B"]["10,5"]["Max-Flow"] == "10000+"
    assert {"hardware", "versions", "best", "answers"} < set(report)


def test_failures_and_sizes_that_do_not_fit_are_shown_as_such() -> None:
    pairs = {"synthetic": power_law_pairs(2, 1000, 0)}
    known = {name: methods(10.0)[name] for name in ("lorenz", "max_flow", "global_resolution 1e-4")}
    table = {line.method: line for line in lines(measure(tasks(pairs, [(1000, 4)], 2, known), pairs, known, 10.0, []))}
    assert (table["max_flow"].stopped, table["max_flow"].tried, table["max_flow"].solved) == ("too large", 1, 0)
    assert (table["global_resolution 1e-4"].tried, table["global_resolution 1e-4"].success) == (2, 0)
    assert table["lorenz"].success == 1


def test_a_slow_method_is_stopped_for_its_problem_only() -> None:
    known = {name: methods(10.0)[name] for name in ("lorenz", "naive")}
    found = list(measure(tasks(PAIRS, [(3, 2), (5, 2)], 3, known), PAIRS, known, 0.0, []))  # no time at all
    assert [(r.k, r.method, r.status) for r in found] == [
        (k, method, "over the limit") for k in (3, 5) for method in ("lorenz", "naive")
    ]
    assert list(measure(tasks(PAIRS, [(3, 2)], 3, known), PAIRS, known, 0.0, found)) == []
    target, draft = (x.numpy() for x in random_pair(0, 40))
    with pytest.raises(OutOfTime, match="no optimum in 1e-06 seconds"):
        linear_program(target, iid_network(draft, 3), 1e-6)


def test_a_run_that_was_stopped_goes_on_and_computes_nothing_again(recording, monkeypatch) -> None:
    one, calls = solve_time.one, []

    def dies(*arguments):
        calls.append(arguments)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return one(*arguments)

    monkeypatch.setattr(solve_time, "one", dies)
    result = study(recording, "--size", "3,2", "--json")
    assert result.exit_code == 130
    assert "the same command goes on" in result.stderr
    assert json.loads(result.stdout)["interrupted"]
    file = recording.parent / "run" / "results.jsonl"
    assert len(file.read_text().splitlines()) == 1 + 7
    file.write_text(file.read_text()[:-20])  # and the last line torn
    whole = study(recording, "--size", "3,2", "--json")
    assert len(by_method(whole)) == 22
    assert len(calls) == 8 + (44 - 6)
    monkeypatch.setattr(solve_time, "one", lambda *_: pytest.fail("computed again"))
    assert study(recording, "--size", "3,2", "--json").stdout == whole.stdout


def test_wrong_input_gets_advice(recording) -> None:
    for arguments, advice in (
        (["--size", "3"], "no size"),
        (["--size", "0,2"], "no size"),
        (["--method", "guess"], "choose from lorenz"),
        (["--tokens", "5"], "only 4 tokens"),
        (["--size", "301,2"], "larger than the vocabulary"),
    ):
        ends_with_advice(study(recording, *arguments), advice)
    study(recording, "--size", "3,2", "--method", "naive")
    other = study(recording, "--size", "3,2", "--method", "naive", "--limit-seconds", 5)
    ends_with_advice(other, "limit_seconds 10.0 instead of 5.0")


def test_enumeration_catches_a_biased_rule() -> None:
    target, draft = random_pair(1, 5)

    def biased(p: Tensor, q: Tensor, x: Tensor, law: Iid) -> Outcome:
        return Outcome(naive(p, q, x, law).accept, (1 - naive(p, q, x, law).accept.sum(-1))[..., None] * p, x)

    assert closed_facts(naive, rate_of_iid, target, draft, Iid(2)).total_variation < 1e-12
    assert closed_facts(biased, rate_of_iid, target, draft, Iid(2)).total_variation > 0.01
