"""The table of acceptance rates: what it says agrees with the rules, and the command prints it."""

import json

import pytest
import torch
from tiny import tiny_model
from typer.testing import CliRunner

import multidraft as md
from multidraft.commands.cli import app
from multidraft.studies.acceptance import cases, measure, random_pairs
from multidraft.studies.capturing import Recording, capture, joined


def test_recording_is_what_the_models_say(tmp_path) -> None:
    """The recorded logits are those of a forward pass over prompt and continuation, and survive a file."""
    target, draft = tiny_model("llama"), tiny_model("mistral")
    recording = joined(capture(target, draft, [[1, 2, 3], [4, 5]], new_tokens=5))
    assert recording.target.shape == recording.draft.shape == (10, 61)
    tokens, _ = md.generate(target, None, [[1, 2, 3]], max_new_tokens=5, generator=torch.Generator().manual_seed(0))
    text = torch.tensor([[1, 2, 3, *tokens[0].tolist()]])
    assert torch.allclose(recording.draft[:5], draft(text).logits[0, 2:-1], atol=1e-5)
    recording.save(tmp_path / "pair.safetensors")
    assert torch.equal(Recording.load(tmp_path / "pair.safetensors").target, recording.target)


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
    random_pairs(4, 30, seed=0).save(tmp_path / "pair.safetensors")
    arguments = ["acceptance", "--recording", str(tmp_path / "pair.safetensors"), "--temperature", "1", "--drafts", "2"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0
    names = {line["scheme"] for line in json.loads(result.stdout)["results"]}
    assert {"anchored:lorenz", "without_replacement:recursive_rejection"} <= names
    table = CliRunner().invoke(app, arguments)
    assert table.exit_code == 0
    assert "anchored:lorenz" in table.stdout


def test_missing_recording_gets_advice() -> None:
    result = CliRunner().invoke(app, ["acceptance", "--recording", "nowhere.safetensors"])
    assert result.exit_code == 2
    assert "multidraft capture" in result.stderr
