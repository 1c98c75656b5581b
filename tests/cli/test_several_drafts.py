"""Studies with several drafts: the rows of each are those of a study of its own, and drafts are compared in pairs."""

import json
from pathlib import Path

import pytest
from multidraft_research.studies.on_captures import candidates
from multidraft_research.studies.on_models import blocks
from multidraft_research.training import corpus
from test_cli import CONTEXT, save_model, synthetic
from typer.testing import CliRunner

from multidraft.cli.main import app


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A folder with a target and a draft model."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = corpus.train_tokenizer(synthetic(20_000), 320, CONTEXT)
    for seed, role in enumerate(("target", "draft")):
        save_model(folder / role, seed, tokenizer)
    lines = [json.dumps({"id": text, "prompt": text}) + "\n" for text in ("the old", "a storm", "and alone")]
    (folder / "prompts.jsonl").write_text("".join(lines))
    return folder


def study(name: str, models: Path, out: Path, *drafts: str):
    """The result of a study of the target with some drafts, of which it may be one itself."""
    named = [word for draft in drafts for word in ("--draft", str(models / draft))]
    call = ["study", name, "--target", str(models / "target"), *named, "--prompts", str(models / "prompts.jsonl")]
    return CliRunner().invoke(app, [*call, "--new-tokens", "10", "--out", str(out), "--json"])


def entries(results: dict) -> dict[tuple, tuple]:
    """Values and errors by their places."""
    return {(e["panel"], e["row"], e["column"]): (e["value"], e["standard_error"]) for e in results["entries"]}


def test_every_draft_has_the_rows_of_its_own_study(models, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(candidates, "COUNTS", (4,))
    monkeypatch.setattr(candidates, "TEMPERATURES", (1.0,))
    result = study("candidates", models, tmp_path / "both", "draft", "target")
    assert result.exit_code == 0, result.output
    both = json.loads(result.stdout)
    assert both["draft"] == [str(models / draft) for draft in ("draft", "target")]
    expected = {}
    for draft in ("draft", "target"):
        own = json.loads(study("candidates", models, tmp_path / draft, draft).stdout)
        expected |= {(p, f"{models / draft}: {r}", c): value for (p, r, c), value in entries(own).items()}
    assert entries(both) == expected
    assert json.loads((tmp_path / "both" / "candidates.json").read_text()) == both
    verdicts = [one["verdict"] for one in both["findings"]]
    assert len(verdicts) == 2 * 2 + 2
    assert verdicts[-2:] == ["shown", "shown"]  # the target drafts for itself better than a stranger does


def test_whole_generations_of_several_drafts_are_compared(models, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(blocks, "PATHS", (8,))
    monkeypatch.setattr(blocks, "LENGTHS", (4,))
    result = study("blocks", models, tmp_path, "draft", "target")
    assert result.exit_code == 0, result.output
    found = entries(json.loads(result.stdout))
    assert found["block efficiency", f"{models / 'target'}: SpecTr, L = 4", 8.0] == (5.0, 0.0)
    assert found["block efficiency", f"{models / 'draft'}: SpecTr, L = 4", 8.0][0] < 5
    assert sum(path.is_dir() for path in tmp_path.iterdir()) == 2
    assert (tmp_path / "blocks.svg").stat().st_size > 5_000


def test_all_studies_take_one_draft(models, tmp_path) -> None:
    result = study("all", models, tmp_path, "draft", "target")
    assert result.exit_code == 2
    assert "takes one --draft" in result.stderr
