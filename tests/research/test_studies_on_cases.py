"""The studies whose cases are no prompts, as parts of the report: their tables are what their own commands say."""

import json
from pathlib import Path

import pytest
from captures import keep
from commands import run
from multidraft_research.captures.folder import Capture
from multidraft_research.cli import everything, others
from multidraft_research.studies import solve_time
from multidraft_research.studies.acceptance import random_pairs
from multidraft_research.studies.curves import telling_case
from multidraft_research.studies.listed import LISTED
from multidraft_research.studies.on_cases import curves, walks
from multidraft_research.studies.on_cases import solve_time as solved
from multidraft_research.studies.running.cells import ratio, sums
from multidraft_research.studies.solve_time import Result
from multidraft_research.studies.solve_time_table import lines
from multidraft_research.studies.walks import measure

RESULTS = [
    Result("recorded", 10, 4, 0, "linear_program", "solved", 0.002, 0.5, "", 0.5, 0.0, "x"),
    Result("recorded", 10, 4, 1, "linear_program", "solved", 0.004, 0.7, "", 0.7, 0.0, "x"),
    Result("recorded", 10, 4, 0, solved.RESOLUTION, "solved", 0.001, 0.5, "", 0.4, 0.1, "x"),
    Result("recorded", 10, 4, 1, solved.RESOLUTION, "failed", 0.009, 0.7),
    Result("recorded", 10, 5, 0, "linear_program", "over the limit", 9.0, 0.5),
]


def estimates(records: list[dict]) -> dict:
    return {place: ratio(own) for place, own in sums(records).items()}


def test_walks_are_those_of_the_command(monkeypatch) -> None:
    monkeypatch.setattr(walks, "TREES", ("1x1", "2"))
    monkeypatch.setattr(walks, "SCHEMES", ("iid:lorenz",))
    found = estimates([walks.OverTables(2, 5)(case) for case in range(2)])
    for s, tree in walks.jobs(walks.SCHEMES, walks.TREES, 2):
        line = measure(s, tree, 2, 2, 5)
        for walk, accepted in (line.walks | {walks.BOUND: line.bound}).items():
            assert found[walks.ACCEPTED, walks.row(s.name, walk), tree].value == pytest.approx(accepted, abs=1e-12)


def test_solve_times_are_means_over_what_was_solved() -> None:
    found = estimates(list(solved.records(RESULTS)))
    for line in lines(RESULTS):
        place = line.method, solved.size(line.k, line.n)
        assert found[(solved.panel(solved.SUCCESS, "recorded"), *place)].value == line.success
        time, share = (found.get((solved.panel(what, "recorded"), *place)) for what in (solved.TIME, solved.SHARE))
        assert (time is None) == (line.milliseconds is None)
        if time is not None:
            assert time.value == pytest.approx(line.milliseconds)
            assert share.value == pytest.approx(line.share)


def test_the_curves_are_those_of_the_first_telling_prompt(tmp_path) -> None:
    pairs = [random_pairs(8, 30, seed) for seed in range(2)]
    case, prompt = curves.first_telling(Capture.open(keep(tmp_path, *pairs)))
    assert prompt == "p0"
    same = telling_case(pairs[0], curves.DRAFTS, curves.TOP_K)
    cells = curves.record(case, ["a"] * case.size, prompt)["cells"]
    assert [cell.total for cell in cells if cell.row == "draft q"] == same.draft.tolist()
    assert len({cell.column for cell in cells}) == case.size  # though all have one name
    assert curves.first_telling(Capture.open(keep(tmp_path / "flat", random_pairs(1, 2, 0)))) is None


def test_only_the_first_positions_are_solved(tmp_path) -> None:
    pairs = [random_pairs(3, 5, seed) for seed in range(3)]
    first = Capture.open(keep(tmp_path, *pairs)).first(4)
    assert first.target.tolist() == [*pairs[0].target.tolist(), pairs[1].target[0].tolist()]


@pytest.fixture
def few(monkeypatch) -> None:
    """One study of a capture, small cases, and pictures that take no time."""

    def sketch(_: object, path: Path, name: str = "") -> None:
        (path / f"{name}.svg" if name else path).write_text("<svg/>")

    monkeypatch.setattr("multidraft_research.studies.running.results.Results.draw", sketch)
    monkeypatch.setattr("multidraft_research.studies.curves.draw", lambda case, names, path: sketch(case, path))
    monkeypatch.setattr(everything, "LISTED", {"top-k": LISTED["top-k"]})
    monkeypatch.setattr(walks, "TREES", ("1x1",))
    monkeypatch.setattr(others, "SOLVED", {False: (1, 10.0)})
    monkeypatch.setattr(others, "WALKED", {False: (2, 2)})
    monkeypatch.setattr(solve_time, "PAPER_SIZES", [(3, 2)])
    monkeypatch.setattr(solve_time, "POSITIONS", 2)
    monkeypatch.setattr(solve_time, "VOCABULARY", 30)


def test_they_are_part_of_the_report_and_are_not_measured_again(tmp_path, few, monkeypatch) -> None:
    folder, out = keep(tmp_path / "capture", *(random_pairs(8, 30, seed) for seed in range(2))), tmp_path / "run"
    asked = ["study", "all", "--capture", str(folder), "--out", str(out), "--json"]
    result = run(*asked)
    assert result.exit_code == 0, result.output
    assert list(json.loads(result.stdout)) == ["top-k", "solve-time", "walks", "toys", "curves"]
    for name in others.OTHERS:
        assert f'<details id="{name}"' in (out / "report.html").read_text()
        assert json.loads((out / f"{name}.json").read_text())["name"] == name
    journals = {name: (out / f"{name}.jsonl").read_bytes() for name in ("solve-time", "walks")}
    monkeypatch.setattr("multidraft_research.studies.solve_time.one", None)
    monkeypatch.setattr("multidraft_research.studies.on_cases.walks.one_case", None)
    assert run(*asked).stdout == result.stdout
    assert {name: (out / f"{name}.jsonl").read_bytes() for name in journals} == journals


def test_a_capture_without_a_telling_position_has_no_curves(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(everything, "LISTED", {"top-k": LISTED["top-k"]})
    monkeypatch.setattr(everything, "OTHERS", {"curves": others.curves})
    folder = keep(tmp_path / "capture", random_pairs(1, 12, 3))
    monkeypatch.setattr("multidraft_research.studies.on_cases.curves.first_telling", lambda capture: None)
    result = run("study", "all", "--capture", str(folder), "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.output
    assert "no picture of curves" in result.stderr
    assert not Path(tmp_path / "run" / "curves.svg").exists()
