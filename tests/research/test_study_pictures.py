"""The pictures of the theory page: what they show is what the rule computes, and files come out."""

import json
import sys
from pathlib import Path

import pytest
import torch
from commands import ends_with_advice, run
from multidraft_research.captures.recording import Recording
from multidraft_research.studies.curves import HIGH, LOW, Case, telling_case
from multidraft_research.studies.toys import figures

import multidraft as md
from multidraft.verification.rules.schedule import schedule, shifted

EXACT = 1e-12
PICTURES = ["--new-tokens", 64]


def recording(seed: int, spread: float = 1.5) -> Recording:
    """Random logits at 40 positions, where the draft is a noisy copy."""
    generator = torch.Generator().manual_seed(seed)
    target = spread * torch.randn(40, 30, generator=generator)
    return Recording(target, target + spread * torch.randn(40, 30, generator=generator))


def study(*arguments: object):
    return run("study", *arguments)


@pytest.fixture(params=[(1, 12), (2, 5), (4, 12), (4, 30)], ids=str)
def case(request) -> Case:
    drafts, top_k = request.param
    return telling_case(recording(drafts), drafts, top_k)


def test_shares_of_the_machine_add_up_to_what_the_rule_accepts(case):
    shares, ends = case.shares(), case.ends
    assert torch.allclose(shares.sum(1), torch.ones(case.size, dtype=torch.float64), atol=EXACT)
    widths = ends - shifted(ends)
    assert (shares.T @ widths <= case.draft + EXACT).all()
    work = case.some_draft_within(ends) - case.some_draft_within(shifted(ends))
    remainder = case.plan.remainder()[case.tokens]
    assert torch.allclose(shares.T @ work, case.target - remainder, atol=EXACT)
    assert float((shares.T @ work).sum()) == pytest.approx(float(case.plan.optimum), abs=EXACT)


def test_resets_use_up_their_tokens_and_leave_work_over(case):
    remainder = case.plan.remainder()[case.tokens]
    last = max(case.resets, default=-1)
    assert (remainder[last + 1 :] <= EXACT).all()
    time = case.shares().T @ (case.ends - shifted(case.ends))
    assert torch.allclose(time[: last + 1], case.draft[: last + 1], atol=EXACT)


def test_a_group_that_will_run_out_of_time_is_not_joined():
    """At time 0.279 the first token's work per time has dipped below the second's 1.5; it still runs to its end."""
    target, draft = (torch.tensor(x, dtype=torch.float64) for x in ([0.7605, 0.15, 0.0895], [0.3, 0.1, 0.6]))
    case = Case(0, 4, schedule(target, draft, torch.tensor(4)))
    t = torch.tensor(0.279, dtype=torch.float64)
    assert (target[0] - case.some_draft_within(t)) / (draft[0] - t) < target[1] / draft[1]
    assert case.resets == [0, 1]
    assert case.shares()[0].tolist() == [1, 0, 0]
    assert float(case.ends[0]) == pytest.approx(0.3, abs=EXACT)
    assert float(case.plan.optimum) == pytest.approx(1 + float(case.some_draft_within(case.plan.Q[1])) - 0.9105)


def test_the_position_is_the_one_where_resets_lose_most(case):
    pairs = recording(case.drafts)
    target = pairs.target.double().softmax(-1)
    scheme = md.scheme("iid:lorenz", drafts=case.drafts)
    cut = torch.zeros(len(target), target.shape[1], dtype=torch.float64)
    cut = cut.scatter(-1, (top := pairs.draft.double().topk(case.size)).indices, top.values.softmax(-1))
    rates = scheme.optimal_acceptance_rate(target, cut)
    lost = (target * (cut > 0)).sum(-1) - rates
    assert lost[(rates >= LOW) & (rates <= HIGH)].max() == lost[case.position]
    assert case.resets
    assert rates[case.position].item() == pytest.approx(float(case.plan.optimum), abs=EXACT)


def test_without_a_telling_position_there_is_advice():
    same = recording(0).target
    with pytest.raises(md.AdviceError, match="at none of 40 positions; record more"):
        telling_case(Recording(same, same), 4, 30)


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_toys_writes_its_picture(tmp_path, ending):
    file = tmp_path / f"toys.{ending}"
    data = json.loads(study("toys", "--out", file, "--json").stdout)
    assert file.stat().st_size > 10_000
    assert data == {"file": str(file), "figures": figures()}


def test_curves_writes_its_picture_of_the_embedded_pair(tmp_path):
    file = tmp_path / "lorenz.svg"
    result = study("curves", "--out", file, *PICTURES, "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert LOW <= data["optimal_acceptance_rate"] <= HIGH
    assert len(data["tokens"]) == len(data["phase_ends"]) == 12
    assert 10_000 < file.stat().st_size < 200_000
    assert "wrote" in study("curves", "--out", file, *PICTURES).stderr


@pytest.mark.parametrize("name", ["toys", "curves"])
def test_what_stands_in_the_way_of_a_picture_is_said_at_once(name, tmp_path, monkeypatch):
    for path, advice in ((tmp_path / "x.doc", "end its name in .svg"), (Path(__file__) / "x.svg", "another path")):
        if name == "toys" or advice.startswith("end"):
            ends_with_advice(study(name, "--out", path), advice)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ends_with_advice(study(name, "--out", tmp_path / "x.svg"), 'pip install "multidraft[plot]"')
