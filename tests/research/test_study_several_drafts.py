"""Studies with several drafts: the rows of each are those of a study of its own, and drafts are compared in pairs."""

import json
from pathlib import Path

import pytest
from commands import ends_with_advice, printed, run, save_pair, written
from multidraft_research.studies.on_captures import candidates
from multidraft_research.studies.on_models import blocks


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A folder with a target, a draft model and prompts."""
    folder = save_pair(tmp_path_factory.mktemp("models"))
    written(folder / "prompts.jsonl", "the old", "a storm", "and alone")
    return folder


def study(name: str, models: Path, out: Path, *drafts: str) -> tuple[object, ...]:
    """The command of a study of the target with some drafts, of which it may be one itself."""
    named = [word for draft in drafts for word in ("--draft", models / draft)]
    call = ["study", name, "--target", models / "target", *named, "--prompts", models / "prompts.jsonl"]
    return (*call, "--new-tokens", 10, "--out", out)


def entries(results: dict) -> dict[tuple, tuple]:
    """Values and errors by their places."""
    return {(e["panel"], e["row"], e["column"]): (e["value"], e["standard_error"]) for e in results["entries"]}


def test_every_draft_has_the_rows_of_its_own_study(models, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(candidates, "COUNTS", (4,))
    monkeypatch.setattr(candidates, "TEMPERATURES", (1.0,))
    both = printed(*study("candidates", models, tmp_path / "both", "draft", "target"))
    assert both["draft"] == [str(models / draft) for draft in ("draft", "target")]
    expected = {}
    for draft in ("draft", "target"):
        own = printed(*study("candidates", models, tmp_path / draft, draft))
        expected |= {(p, f"{models / draft}: {r}", c): value for (p, r, c), value in entries(own).items()}
    assert entries(both) == expected
    assert json.loads((tmp_path / "both" / "candidates.json").read_text()) == both
    verdicts = [one["verdict"] for one in both["findings"]]
    assert len(verdicts) == 2 * 2 + 2
    assert verdicts[-2:] == ["shown", "shown"]  # the target drafts for itself better than a stranger does


def test_whole_generations_of_several_drafts_are_compared(models, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(blocks, "PATHS", (8,))
    monkeypatch.setattr(blocks, "LENGTHS", (4,))
    found = entries(printed(*study("blocks", models, tmp_path, "draft", "target")))
    assert found["block efficiency", f"{models / 'target'}: SpecTr, L = 4", 8.0] == (5.0, 0.0)
    assert found["block efficiency", f"{models / 'draft'}: SpecTr, L = 4", 8.0][0] < 5
    assert sum(path.is_dir() for path in tmp_path.iterdir()) == 2
    assert (tmp_path / "blocks.svg").stat().st_size > 5_000


def test_all_studies_take_one_draft(models, tmp_path) -> None:
    ends_with_advice(run(*study("all", models, tmp_path, "draft", "target")), "takes one --draft")
