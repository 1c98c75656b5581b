"""Distillation: the draft learns what the target expects, a resumed run is an unbroken one, and the gain is honest."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from commands import run as command
from multidraft_research.captures.capturing import Manner
from multidraft_research.captures.folder import FORMAT, MANIFEST, Capture
from multidraft_research.captures.work import Capturing, Passage
from multidraft_research.cli.distill import check_same
from multidraft_research.studies.running.cells import ratio, sums
from multidraft_research.training import distilling
from multidraft_research.training.distilling import Lesson, distil, gains, loss_of
from tiny import VOCABULARY, tiny_model
from transformers import PreTrainedModel

from multidraft.cli.crews import alone, run
from multidraft.errors import AdviceError
from multidraft.io.journal import Journal
from multidraft.models.loading import load_model
from multidraft.zoo import Pair, load_pair

LESSON = Lesson(steps=4, batch=2, learning_rate=0.02, held_out=0.4, checkpoint_every=2)


def draft() -> PreTrainedModel:
    return deepcopy(tiny_model("mistral"))


@pytest.fixture(scope="module")
def capture(tmp_path_factory) -> Capture:
    """Five prompts that a tiny target has continued."""
    folder = tmp_path_factory.mktemp("capture")
    journal = Journal(folder / MANIFEST, {"capture": FORMAT, "vocabulary": VOCABULARY, "prompts": 5})
    passages = [Passage(f"p{i}", "task", [i + 1, i + 2]) for i in range(5)]
    target = deepcopy(tiny_model("llama"))
    with torch.no_grad():
        target.lm_head.weight.mul_(8)  # expects something, so that there is something to learn
    pair = Pair(target, tiny_model("mistral"), None)  # type: ignore[arg-type]  # no text here
    run(Capturing(lambda: pair, passages, Manner(new_tokens=12), folder), 5, journal, alone, "capturing")
    return Capture.open(folder)


def loss(model: PreTrainedModel, capture: Capture) -> float:
    """Over the prompts that are taught."""
    with torch.inference_mode():
        return float(sum(loss_of(model, capture.shard(index)) for index in range(3)))


def test_the_draft_comes_nearer_to_the_target(capture, tmp_path) -> None:
    before = loss(draft(), capture)
    taught = distil(draft(), capture, replace(LESSON, steps=20), tmp_path / "checkpoint.pt")
    assert loss(taught, capture) < before - 0.5
    assert not taught.training


def test_the_loss_is_the_cross_entropy_of_the_recorded_distributions(capture) -> None:
    shard = capture.shard(0)
    logits = draft()(torch.cat([shard.prompt, shard.tokens])[None]).logits[0, len(shard.prompt) - 1 : -1]
    direct = -(shard.recording.target.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
    assert loss_of(draft(), shard).item() == pytest.approx(direct.item(), abs=1e-5)


def test_a_resumed_lesson_is_an_unbroken_one(capture, tmp_path, monkeypatch) -> None:
    whole = distil(draft(), capture, LESSON, tmp_path / "whole.pt")
    save, calls = distilling.save_checkpoint, []

    def stopped(*arguments) -> None:
        save(*arguments)
        calls.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(distilling, "save_checkpoint", stopped)
    with pytest.raises(KeyboardInterrupt):
        distil(draft(), capture, LESSON, tmp_path / "torn.pt")
    monkeypatch.undo()
    resumed = distil(draft(), capture, LESSON, tmp_path / "torn.pt")
    assert calls == [1]
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_gain_is_measured_on_prompts_that_were_held_out(capture, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(distilling, "COUNTS", (1,))
    unchanged = {p: ratio(own) for p, own in sums(records(draft(), capture)).items()}
    assert unchanged["acceptance", "gain", 1.0].value == pytest.approx(0, abs=1e-6)
    held_out = [capture.shard(index).recording for index in (3, 4)]
    rates = [torch.minimum(r.target.double().softmax(-1), r.draft.double().softmax(-1)).sum(-1) for r in held_out]
    assert unchanged["acceptance", "before", 1.0].value == pytest.approx(float(torch.cat(rates).mean()), abs=1e-6)
    taught = distil(draft(), capture, LESSON, tmp_path / "checkpoint.pt")
    found = {place: ratio(own) for place, own in sums(records(taught, capture)).items()}
    before, after, gain = (found["acceptance", row, 1.0].value for row in ("before", "after", "gain"))
    assert gain == pytest.approx(after - before, abs=1e-12)
    assert gain != 0


def records(model: PreTrainedModel, capture: Capture) -> list[dict]:
    return [{"id": name, "cells": cells} for name, cells in gains(model, capture, LESSON)]


def test_bad_lessons_get_advice(tmp_path) -> None:
    with pytest.raises(AdviceError, match="none is left to teach"):
        Lesson().parts(1)
    check_same(tmp_path / "lesson.json", {"steps": 1})
    check_same(tmp_path / "lesson.json", {"steps": 1})
    with pytest.raises(AdviceError, match="steps 1 is now 2"):
        check_same(tmp_path / "lesson.json", {"steps": 2})


@pytest.mark.slow
def test_the_command_writes_a_draft_that_can_be_used(tmp_path) -> None:
    def multidraft(*arguments: object):
        result = command(*arguments)
        assert result.exit_code == 0, result.output
        return result

    multidraft("capture", "--out", tmp_path / "capture", "--new-tokens", 8)
    lesson = ["distill", "--capture", tmp_path / "capture", "--out", tmp_path / "run", "--steps", 2, "--batch", 1]
    assert "held out" in multidraft(*lesson).stdout
    taught, old = load_model(str(tmp_path / "run" / "draft")), load_pair().draft
    ids = torch.tensor([[1, 2, 3]])
    assert not torch.equal(taught(ids).logits, old(ids).logits)
    assert (taught.dtype, taught.num_parameters()) == (old.dtype, old.num_parameters())
