"""The solve-time study: exactness of what it reports, stopping, resuming, and what it prints."""

import json
from pathlib import Path

import pytest
import torch
from captures import keep
from commands import ends_with_advice, run
from multidraft_research.solvers.global_resolution_rule import GlobalResolution
from multidraft_research.solvers.linear_program import OutOfTime, linear_program
from multidraft_research.solvers.network import iid_network
from multidraft_research.studies import solve_time
from multidraft_research.studies.acceptance import random_pairs
from multidraft_research.studies.solve_time import Result, measure, power_law_pairs, tasks, top_k
from multidraft_research.studies.solve_time_table import best, lines
from multidraft_research.studies.solvers import closed_facts, methods, resolution
from pairs import random_pair
from torch import Tensor

from multidraft.sampling.from_logits import distribution
from multidraft.verification.laws import Iid
from multidraft.verification.outcome import Outcome
from multidraft.verification.rules.naive import naive, rate_of_iid

EXACT = ("lorenz", "max_flow", "reduced_max_flow", "linear_program", "k_sequential", "recursive_rejection", "naive")
OPTIMAL = EXACT[:4]
PAIRS = {"recorded": random_pairs(4, 12, 0)}


@pytest.fixture
def recording(tmp_path) -> Path:
    return keep(tmp_path / "capture", PAIRS["recorded"])


@pytest.fixture(autouse=True)
def few_synthetic_pairs(monkeypatch, unchecked) -> None:
    monkeypatch.setattr(solve_time, "POSITIONS", 4)


def study(recording: Path, *arguments: object):
    out = recording.parent / "run"
    words = ["study", "solve-time", "--capture", recording, "--out", out, "--tokens", 2, *arguments]
    return run(*words)


def by_method(result) -> dict[tuple[str, int, int, str], dict]:
    assert result.exit_code == 0, result.output
    return {(r["source"], r["k"], r["n"], r["method"]): r for r in json.loads(result.stdout)["results"]}


def test_every_method_is_as_exact_as_it_says_and_the_paper_s_numbers_stand_beside_ours(recording) -> None:
    picture = recording.parent / "times.svg"
    result = study(recording, "--size", "3,2", "--size", "4,3", "--plot", picture, "--json")
    lines_by_method, report = by_method(result), json.loads(result.stdout)
    assert len(lines_by_method) == 2 * 2 * 11
    for (*_, method), line in lines_by_method.items():
        assert line["tried"] == line["solved"] == 2
        assert line["milliseconds"] > 0
        assert line["over_lorenz"] > 0
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
    printed = report["printed_in_the_paper"]
    assert printed["solve_times"]["Llama-3 70B/8B"]["10,5"]["Max-Flow"] == "10000+"
    assert printed["best_acceptance"]["Gemma-2 27B/2B"]["100 ms"]["G.R., larger tolerance"] == "86.60"
    assert {"hardware", "versions", "best", "answers"} < set(report)
    assert not report["interrupted"]


def test_people_get_a_table(recording) -> None:
    methods = ["--method", "lorenz", "--method", "global_resolution 1e-3"]
    result = study(recording, "--size", "3,2", "--size", "100,3", *methods)
    assert "synthetic: milliseconds for a token" in result.stdout
    assert "0 %" in result.stdout  # 100,3 takes more tokens than Global Resolution is allowed


def test_failures_and_sizes_that_do_not_fit_are_shown_as_such() -> None:
    pairs = {"synthetic": power_law_pairs(2, 1000, 0)}
    known = {name: methods(10.0)[name] for name in ("lorenz", "max_flow", "global_resolution 1e-4")}
    table = {line.method: line for line in lines(measure(tasks(pairs, [(1000, 4)], 2, known), pairs, known, 10.0, []))}
    assert (table["max_flow"].stopped, table["max_flow"].tried, table["max_flow"].solved) == ("too large", 1, 0)
    assert (table["global_resolution 1e-4"].tried, table["global_resolution 1e-4"].success) == (2, 0)
    assert table["lorenz"].success == 1


def test_a_slow_method_is_stopped_for_its_problem_only() -> None:
    known = {name: methods(10.0)[name] for name in ("lorenz", "naive")}
    results = list(measure(tasks(PAIRS, [(3, 2), (5, 2)], 3, known), PAIRS, known, 0.0, []))  # no time at all
    assert [(r.k, r.method, r.status) for r in results] == [
        (k, method, "over the limit") for k in (3, 5) for method in ("lorenz", "naive")
    ]
    again = list(measure(tasks(PAIRS, [(3, 2)], 3, known), PAIRS, known, 0.0, results))
    assert again == []


def test_the_linear_program_stops_itself() -> None:
    target, draft = (x.numpy() for x in random_pair(0, 40))
    with pytest.raises(OutOfTime, match="no optimum in 1e-06 seconds"):
        linear_program(target, iid_network(draft, 3), 1e-6)


@pytest.mark.parametrize("fault", [SystemError, KeyboardInterrupt])
def test_a_run_that_was_stopped_goes_on_and_computes_nothing_again(recording, monkeypatch, fault) -> None:
    measure_task, calls = solve_time.measure_task, []

    def dies(*arguments):
        calls.append(arguments)
        if len(calls) == 8:
            raise fault
        return measure_task(*arguments)

    monkeypatch.setattr(solve_time, "measure_task", dies)
    result = study(recording, "--size", "3,2", "--json")
    if fault is KeyboardInterrupt:
        assert result.exit_code == 130
        assert "the same command goes on" in result.stderr
        assert json.loads(result.stdout)["interrupted"]
    file = recording.parent / "run" / "results.jsonl"
    assert len(file.read_text().splitlines()) == 1 + 7
    file.write_text(file.read_text()[:-20])  # and the last line torn
    whole = study(recording, "--size", "3,2", "--json")
    assert len(by_method(whole)) == 22
    assert len(calls) == 8 + (44 - 6)
    assert study(recording, "--size", "3,2", "--json").stdout == whole.stdout
    assert len(calls) == 8 + (44 - 6)


def test_wrong_input_gets_advice(recording) -> None:
    for arguments, advice in (
        (["--size", "3"], "no size"),
        (["--size", "0,2"], "no size"),
        (["--method", "guess"], "choose from lorenz"),
        (["--tokens", "5"], "only 4 tokens"),
        (["--size", "128257,2"], "larger than the vocabulary"),
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


def test_facts_of_global_resolution_are_those_of_its_rule() -> None:
    target, draft = random_pair(2, 5)
    law = Iid(3)
    drafted, weight = law.tuples(draft)
    outcome = GlobalResolution(1e-2)(target.expand(len(drafted), -1), draft.expand(len(drafted), -1), drafted, law)
    facts = resolution(1e-2)(target, draft, drafted[0], law)[1]()
    assert facts.acceptance_rate == pytest.approx(float(weight @ outcome.acceptance()), abs=1e-12)
    off = float((weight @ outcome.law() - target).abs().sum()) / 2
    assert facts.total_variation == pytest.approx(off, abs=1e-12)
    assert off > 1e-4


def test_the_problem_is_that_of_the_drafts_top_k_and_synthetic_pairs_are_as_they_claim() -> None:
    target, draft = top_k(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.4, 0.1, 0.2, 0.3]), 2)
    assert target.tolist() == pytest.approx([0.1, 0.4])
    assert draft.tolist() == pytest.approx([4 / 7, 3 / 7])
    pairs = power_law_pairs(48, 128_256, 0)
    p, q = (distribution(x) for x in (pairs.target, pairs.draft))
    assert float(-(q * q.clamp(min=1e-30).log()).sum(-1).mean()) == pytest.approx(3.8, abs=0.4)  # the entropy
    assert float(torch.minimum(p, q).sum(-1).mean()) == pytest.approx(0.67, abs=0.03)


def result(method: str, token: int, status: str, seconds: float, rate: float | None = None, k: int = 10) -> Result:
    return Result("s", k, 2, token, method, status, seconds, 0.8, "", rate, 0.0 if rate else None)


def test_lines_and_the_best_within_a_time() -> None:
    best_lines = [
        result("lorenz", 0, "solved", 0.001, 0.8),
        result("lorenz", 1, "solved", 0.003, 0.6),
        result("max_flow", 0, "solved", 0.05, 0.8),
        result("max_flow", 1, "solved", 0.02, 0.6),
        result("linear_program", 0, "over the limit", 20.0),
        result("global_resolution 1e-3", 0, "solved", 0.01, 0.79),
        result("global_resolution 1e-3", 1, "failed", 0.004),
        result("lorenz", 0, "solved", 0.05, 0.9, k=20),
    ]
    table = {(line.method, line.k): line for line in lines(best_lines)}
    resolved = table["global_resolution 1e-3", 10]
    assert (resolved.success, resolved.milliseconds, resolved.over_lorenz) == (0.5, 10, 10)
    assert resolved.share == pytest.approx(0.79 / 0.8)
    assert resolved.milliseconds_tried == pytest.approx(7)
    within = {(b.method, b.limit): b for b in best(best_lines)}
    assert (within["lorenz", 10].k, within["lorenz", 100].k) == (10, 20)
    assert within["max_flow", 10].k is None
    assert within["linear_program", 100].k is None
    assert within["global_resolution 1e-3", 100].acceptance_rate == pytest.approx((0.79 + 0.6) / 2)
    assert within["global_resolution 1e-3", 100].milliseconds == pytest.approx((10 + 4 + 20) / 2)
