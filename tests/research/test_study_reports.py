"""What studies show: the pictures of the theory page, the parts of the report whose cases are no prompts, the page."""

import base64
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from captures import keep
from commands import ends_with_advice, printed, run
from multidraft_research.captures.folder import Capture
from multidraft_research.captures.recording import Recording
from multidraft_research.cli import everything, others
from multidraft_research.cli.capture import Source
from multidraft_research.cli.executors import serial
from multidraft_research.cli.measured import StudyRequest
from multidraft_research.studies import pictures, solve_time, solve_time_picture
from multidraft_research.studies.acceptance import random_pairs
from multidraft_research.studies.curves import HIGH, LOW, PositionCase, telling_case
from multidraft_research.studies.listed import LISTED
from multidraft_research.studies.on_captures import top_k
from multidraft_research.studies.on_cases import curves, toys, walks
from multidraft_research.studies.on_cases import solve_time as solved
from multidraft_research.studies.running.cells import Estimate, ratio, sums
from multidraft_research.studies.running.charts import ABOVE_ITS_OPTIMUM, noise_of, panel, styles_of
from multidraft_research.studies.running.report import page
from multidraft_research.studies.running.results import Results
from multidraft_research.studies.running.study import Panel, Study
from multidraft_research.studies.running.tables import PanelTable
from multidraft_research.studies.solve_time import Result
from multidraft_research.studies.solve_time_table import lines
from multidraft_research.studies.toys import figures
from multidraft_research.studies.walks import measure

import multidraft as md
from multidraft.verification.rules.lorenz_schedule import schedule, shift_right

EXACT = 1e-12
CELLS = [[top_k.RATE, top_k.ALL, float(n), n / 20, 1.0] for n in (2, 10)]
RECORDS = [{"id": str(i), "cells": CELLS} for i in range(3)]
RESULTS = [
    Result("recorded", 10, 4, 0, "linear_program", "solved", 0.002, 0.5, "", 0.5, 0.0, "x"),
    Result("recorded", 10, 4, 1, "linear_program", "solved", 0.004, 0.7, "", 0.7, 0.0, "x"),
    Result("recorded", 10, 4, 0, solved.RESOLUTION, "solved", 0.001, 0.5, "", 0.4, 0.1, "x"),
    Result("recorded", 10, 4, 1, solved.RESOLUTION, "failed", 0.009, 0.7),
    Result("recorded", 10, 5, 0, "linear_program", "over the limit", 9.0, 0.5),
]


def recording(seed: int, spread: float = 1.5) -> Recording:
    """Random logits at 40 positions, where the draft is a noisy copy."""
    generator = torch.Generator().manual_seed(seed)
    target = spread * torch.randn(40, 30, generator=generator)
    return Recording(target, target + spread * torch.randn(40, 30, generator=generator))


@pytest.mark.parametrize(("drafts", "top_k"), [(1, 12), (2, 5), (4, 12), (4, 30)])
def test_the_picture_shows_what_the_rule_accepts_where_resets_lose_most(drafts: int, top_k: int) -> None:
    """Shares of the machine add up to it; resets use up their tokens and leave work over."""
    case, pairs = telling_case(recording(drafts), drafts, top_k), recording(drafts)
    shares, ends, remainder = case.shares(), case.ends, case.plan.remainder()[case.tokens]
    assert torch.allclose(shares.sum(1), torch.ones(case.size, dtype=torch.float64), atol=EXACT)
    time = shares.T @ (ends - shift_right(ends))
    assert (time <= case.draft + EXACT).all()
    work = shares.T @ (case.some_draft_within(ends) - case.some_draft_within(shift_right(ends)))
    assert torch.allclose(work, case.target - remainder, atol=EXACT)
    assert float(work.sum()) == pytest.approx(float(case.plan.optimum), abs=EXACT)
    last = max(case.resets)
    assert (remainder[last + 1 :] <= EXACT).all()
    assert torch.allclose(time[: last + 1], case.draft[: last + 1], atol=EXACT)
    target = pairs.target.double().softmax(-1)
    top = pairs.draft.double().topk(case.size)
    cut = torch.zeros_like(target).scatter(-1, top.indices, top.values.softmax(-1))
    rates = md.scheme("iid:lorenz", drafts=drafts).optimal_acceptance_rate(target, cut)
    lost = (target * (cut > 0)).sum(-1) - rates
    assert lost[(rates >= LOW) & (rates <= HIGH)].max() == lost[case.position]
    assert rates[case.position].item() == pytest.approx(float(case.plan.optimum), abs=EXACT)


def test_a_group_that_will_run_out_of_time_is_not_joined() -> None:
    """At time 0.279 the first token's work per time has dipped below the second's 1.5; it still runs to its end."""
    target, draft = (torch.tensor(x, dtype=torch.float64) for x in ([0.7605, 0.15, 0.0895], [0.3, 0.1, 0.6]))
    case = PositionCase(0, 4, schedule(target, draft, torch.tensor(4)))
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
    data = printed("study", "curves", "--out", tmp_path / "lorenz.svg", "--max-new-tokens", 32)  # of the embedded pair
    assert LOW <= data["optimal_acceptance_rate"] <= HIGH
    assert len(data["tokens"]) == len(data["phase_ends"]) == 12
    assert 10_000 < (tmp_path / "lorenz.svg").stat().st_size < 200_000
    ends_with_advice(run("study", "toys", "--out", Path(__file__) / "x.svg"), "another path")
    for name in ("toys", "curves"):
        ends_with_advice(run("study", name, "--out", tmp_path / "x.doc"), "end its name in .svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in ("toys", "curves"):
        ends_with_advice(run("study", name, "--out", tmp_path / "x.svg"), "pip install -c constraints.txt -e '.[plot]'")
    same = recording(0).target
    with pytest.raises(md.AdviceError, match="at none of 40 positions; record more"):
        telling_case(Recording(same, same), 4, 30)


def estimates(records: list[dict]) -> dict:
    return {place: ratio(sums_of_place) for place, sums_of_place in sums(records).items()}


def test_walks_are_those_of_the_command() -> None:
    estimated = estimates([walks.OverTables(2, 5)(case) for case in range(2)])
    for s, tree in walks.jobs(["iid:lorenz"], ["1x1", "2x1"], 2):
        line = measure(s, tree, 2, 2, 5)
        for walk, accepted in (line.walks | {walks.BOUND: line.bound}).items():
            assert estimated[walks.ACCEPTED, walks.row(s.name, walk), tree].value == pytest.approx(accepted, abs=1e-12)


def test_solve_times_are_means_over_what_was_solved() -> None:
    estimated = estimates(list(solved.records(RESULTS)))
    for line in lines(RESULTS):
        place = line.method, solved.size(line.k, line.n)
        assert estimated[(solved.panel(solved.SUCCESS, "recorded"), *place)].value == line.success
        time, share = (estimated.get((solved.panel(what, "recorded"), *place)) for what in (solved.TIME, solved.SHARE))
        assert (time is None) == (line.milliseconds is None)
        if time is not None:
            assert (time.value, share.value) == pytest.approx((line.milliseconds, line.share))


def test_the_curves_are_those_of_the_first_telling_prompt_and_only_the_first_positions_are_solved(tmp_path) -> None:
    pairs = [random_pairs(8, 30, seed) for seed in range(2)]
    capture = Capture.open(keep(tmp_path / "some", *pairs))
    case, prompt = curves.first_telling(capture)
    assert prompt == "p0"
    same = telling_case(pairs[0], curves.DRAFTS, curves.TOP_K)
    cells = curves.record(case, ["a"] * case.size, prompt)["cells"]
    assert [cell.total for cell in cells if cell.row == "draft q"] == same.draft.tolist()
    assert len({cell.column for cell in cells}) == case.size  # though all have one name
    assert curves.first_telling(Capture.open(keep(tmp_path / "flat", random_pairs(1, 2, 0)))) is None
    assert capture.first(9).target.tolist() == [*pairs[0].target.tolist(), pairs[1].target[0].tolist()]


def noise(study: Study, records: list[dict], folder: Path) -> str:
    """The line of a picture that says what its bars are; matplotlib writes the text of a label as a comment."""
    Results.of(study, records, {}).draw(folder, "picture")
    (line,) = re.findall("<!-- (.*bars.*) -->", (folder / "picture.svg").read_text())
    return line


def test_a_picture_says_what_its_bars_are(tmp_path) -> None:
    assert noise(top_k.STUDY, RECORDS, tmp_path) == "bars: 95 % interval over 3 prompts"
    assert noise(top_k.STUDY, RECORDS[:2], tmp_path) == "no bars: an interval needs at least 3 prompts"
    row = {"a": Estimate(0.5, 0.1, 4)}
    rates = PanelTable(Panel("rates", "task"), ["a"], {"iid:naive": row, "iid optimum": row})
    assert noise_of([rates], "prompts") == f"bars: 95 % interval over 4 prompts; {ABOVE_ITS_OPTIMUM}"
    assert noise(toys.STUDY, [toys.record()], tmp_path) == "no bars: the values are exact"
    solve_time_picture.draw(lines(RESULTS), tmp_path / "times.svg")
    assert "<!-- bars: middle 95 % of tokens; " in (tmp_path / "times.svg").read_text()


def test_bars_are_the_intervals(tmp_path) -> None:
    """The length of a bar is that of the 95 % interval, as in the data for scripts."""
    cells = [[[top_k.RATE, "a", 2.0, value, 1.0]] for value in (0.2, 0.4, 0.9)]
    results = Results.of(top_k.STUDY, [{"id": str(i), "cells": cell} for i, cell in enumerate(cells)], {})
    _, ((axis,),) = pictures.figure()
    panel(axis, results.tables[0], styles_of(results.tables))
    bar = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert bar == pytest.approx([100 * end for end in results.as_data()["entries"][0]["interval"]])


class Balance(HTMLParser):
    """Counts what is opened and closed, and keeps what is linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attributes) -> None:
        self.links += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    results = Results.of(top_k.STUDY, RECORDS, {"about": "a < b"})
    html, parser = page("x & y", {"seed": 0}, {"top-k": (results, b"<svg/>")}), Balance()
    parser.feed(html)
    assert parser.open == []
    assert parser.links == ["#top-k", "data:image/svg+xml;base64," + base64.b64encode(b"<svg/>").decode()]
    for text in ("x &amp; y", "a &lt; b", 'class="shown"', ">50.00 ± 0.00<", ">+40.00 ± 0.00<"):
        assert text in html  # ten drafts accept more than two, by the same in every prompt: the paired difference
    assert html.index("10 drafts accept more than 2") < html.index("<details")  # what was found comes first


@pytest.fixture
def few_studies(monkeypatch) -> None:
    """Studies of a capture and of models, small cases, and pictures that take no time."""

    def sketch(_: object, path: Path, name: str = "") -> None:
        (path / f"{name}.svg" if name else path).write_text("<svg/>")

    monkeypatch.setattr("multidraft_research.studies.running.results.Results.draw", sketch)
    monkeypatch.setattr("multidraft_research.studies.curves.draw", lambda case, names, path: sketch(case, path))
    monkeypatch.setattr(everything, "LISTED", {name: LISTED[name] for name in ("top-k", "trees")})
    for module, name, value in (
        (others, "SOLVED", {False: (1, 10.0)}),
        (others, "WALKED", {False: (2, 2)}),
        (solve_time, "PAPER_SIZES", [(3, 2)]),
        (solve_time, "POSITIONS", 2),
        (solve_time, "VOCABULARY", 30),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.mark.usefixtures("unchecked")
def test_all_studies_of_a_capture_are_one_command_and_are_not_measured_again(tmp_path, few_studies) -> None:
    """Those that need models are left out where a capture was given."""
    folder, out = keep(tmp_path / "capture", *(random_pairs(8, 30, seed) for seed in range(2))), tmp_path / "run"
    words = ["study", "all", "--capture", folder, "--out", out]
    whole = printed(*words)
    assert list(whole) == ["top-k", "solve-time", "walks", "toys", "curves"]
    html = (out / "report.html").read_text()
    assert set(re.findall(r'<details id="([a-z-]+)"', html)) == set(whole)
    assert "<td>prompts</td><td>2</td></tr><tr><td>positions</td><td>16</td>" in html
    assert all(json.loads((out / f"{name}.json").read_text())["name"] == name for name in others.OTHERS)
    journals = {out / f"{name}.jsonl": (out / f"{name}.jsonl").read_bytes() for name in ("solve-time", "walks")}
    assert printed(*words) == whole
    assert {journal: journal.read_bytes() for journal in journals} == journals  # which has the times of answers


def test_without_a_telling_position_there_is_no_picture_of_curves(tmp_path, capsys) -> None:
    folder = keep(tmp_path / "flat", random_pairs(1, 2, 0))
    request = StudyRequest(tmp_path / "out", Source(None, None), 1, 0, serial, folder)
    assert others.curves("curves", request) is None
    assert "no picture of curves" in capsys.readouterr().err
    assert not (tmp_path / "out" / "curves.svg").exists()
