"""What studies show: the pictures of the theory page, the parts of the report whose cases are no prompts, the page."""

import base64
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from captures import keep
from commands import ends_with_advice, printed, run
from multidraft_research.captures.recording import Recording
from multidraft_research.cli import everything, others
from multidraft_research.studies import solve_time
from multidraft_research.studies.acceptance import random_pairs
from multidraft_research.studies.curves import HIGH, LOW, Case, telling_case
from multidraft_research.studies.listed import LISTED
from multidraft_research.studies.on_captures import top_k
from multidraft_research.studies.on_cases import walks
from multidraft_research.studies.running.report import page
from multidraft_research.studies.running.results import Results
from multidraft_research.studies.toys import figures

import multidraft as md
from multidraft.verification.rules.schedule import schedule

EXACT = 1e-12
CELLS = [[top_k.RATE, top_k.ALL, float(n), n / 20, 1.0] for n in (2, 10)]
RECORDS = [{"id": str(i), "cells": CELLS} for i in range(3)]


def test_a_group_that_will_run_out_of_time_is_not_joined() -> None:
    """At time 0.279 the first token's work per time has dipped below the second's 1.5; it still runs to its end."""
    target, draft = (torch.tensor(x, dtype=torch.float64) for x in ([0.7605, 0.15, 0.0895], [0.3, 0.1, 0.6]))
    case = Case(0, 4, schedule(target, draft, torch.tensor(4)))
    t = torch.tensor(0.279, dtype=torch.float64)
    assert (target[0] - case.some_draft_within(t)) / (draft[0] - t) < target[1] / draft[1]
    assert case.resets == [0, 1]
    assert case.shares()[0].tolist() == [1, 0, 0]
    assert float(case.ends[0]) == pytest.approx(0.3, abs=EXACT)
    assert float(case.plan.optimum) == pytest.approx(1 + float(case.some_draft_within(case.plan.Q[1])) - 0.9105)


@pytest.mark.usefixtures("unchecked")
def test_pictures_are_written_or_what_stands_in_their_way_is_said(tmp_path, monkeypatch) -> None:
    data = printed("study", "toys", "--out", tmp_path / "toys.png")
    assert (tmp_path / "toys.png").stat().st_size > 10_000
    assert data == {"file": str(tmp_path / "toys.png"), "figures": figures()}
    data = printed("study", "curves", "--out", tmp_path / "lorenz.svg", "--new-tokens", 32)  # of the embedded pair
    assert LOW <= data["optimal_acceptance_rate"] <= HIGH
    assert len(data["tokens"]) == len(data["phase_ends"]) == 12
    assert 10_000 < (tmp_path / "lorenz.svg").stat().st_size < 200_000
    ends_with_advice(run("study", "toys", "--out", Path(__file__) / "x.svg"), "another path")
    ends_with_advice(run("study", "curves", "--out", tmp_path / "x.doc"), "end its name in .svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ends_with_advice(run("study", "toys", "--out", tmp_path / "x.svg"), 'pip install "multidraft[plot]"')
    same = random_pairs(40, 30, 0).target
    with pytest.raises(md.AdviceError, match="at none of 40 positions; record more"):
        telling_case(Recording(same, same), 4, 30)


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    results = Results.of(top_k.STUDY, RECORDS, {"about": "a < b"})
    made = page("x & y", {"seed": 0}, {"top-k": (results, b"<svg/>")})
    for tag in set(re.findall(r"<([a-z]+[0-9]?)\b", made)) - {"meta", "img"}:
        assert len(re.findall(rf"<{tag}\b", made)) == made.count(f"</{tag}>"), tag
    picture = "data:image/svg+xml;base64," + base64.b64encode(b"<svg/>").decode()
    assert re.findall(r'(?:src|href)="([^"]*)"', made) == ["#top-k", picture]
    for text in ("x &amp; y", "a &lt; b", 'class="shown"', ">50.00 ± 0.00<", ">+40.00 ± 0.00<"):
        assert text in made  # ten drafts accept more than two, by the same in every prompt: the paired difference
    assert made.index("10 drafts accept more than 2") < made.index("<details")  # what was found comes first


@pytest.fixture
def few(monkeypatch) -> None:
    """Studies of a capture and of models, small cases, and pictures that take no time."""

    def sketch(_: object, path: Path, name: str = "") -> None:
        (path / f"{name}.svg" if name else path).write_text("<svg/>")

    monkeypatch.setattr("multidraft_research.studies.running.results.Results.draw", sketch)
    monkeypatch.setattr("multidraft_research.studies.curves.draw", lambda case, names, path: sketch(case, path))
    monkeypatch.setattr(everything, "LISTED", {name: LISTED[name] for name in ("top-k", "trees")})
    for module, name, value in (
        (walks, "TREES", ("1x1",)),
        (others, "SOLVED", {False: (1, 10.0)}),
        (others, "WALKED", {False: (2, 2)}),
        (solve_time, "PAPER_SIZES", [(3, 2)]),
        (solve_time, "POSITIONS", 2),
        (solve_time, "VOCABULARY", 30),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.mark.usefixtures("unchecked")
def test_all_studies_of_a_capture_are_one_command_and_are_not_measured_again(tmp_path, few, monkeypatch) -> None:
    """Those that need models are left out where a capture was given."""
    folder, out = keep(tmp_path / "capture", *(random_pairs(8, 30, seed) for seed in range(2))), tmp_path / "run"
    asked = ["study", "all", "--capture", folder, "--out", out]
    whole = printed(*asked)
    assert list(whole) == ["top-k", "solve-time", "walks", "toys", "curves"]
    made = (out / "report.html").read_text()
    assert set(re.findall(r'<details id="([a-z-]+)"', made)) == set(whole)
    assert "<td>prompts</td><td>2</td></tr><tr><td>positions</td><td>16</td>" in made
    assert all(json.loads((out / f"{name}.json").read_text())["name"] == name for name in others.OTHERS)
    journals = {name: (out / f"{name}.jsonl").read_bytes() for name in ("solve-time", "walks")}
    monkeypatch.setattr("multidraft_research.studies.solve_time.one", None)
    monkeypatch.setattr("multidraft_research.studies.on_cases.walks.one_case", None)
    assert printed(*asked) == whole
    assert {name: (out / f"{name}.jsonl").read_bytes() for name in journals} == journals
    monkeypatch.setattr(everything, "OTHERS", {"curves": others.curves})
    monkeypatch.setattr("multidraft_research.studies.on_cases.curves.first_telling", lambda capture: None)
    without = run("study", "all", "--capture", folder, "--out", tmp_path / "without")
    assert without.exit_code == 0, without.output
    assert "no picture of curves" in without.stderr
    assert not (tmp_path / "without" / "curves.svg").exists()
