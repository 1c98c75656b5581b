"""The error of several approximate steps: as the decoder makes it, as the study estimates it, and within its bound."""

from itertools import product

import pytest
import torch
from multidraft_research.captures.recording import Recording
from multidraft_research.studies.acceptance import random_pairs
from multidraft_research.studies.on_captures import multi_step_error as study
from multidraft_research.studies.running.study import Captured

import multidraft as md
from multidraft.auditing.enumeration import first_tokens, step_law, target_law
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import Tree
from multidraft.models.table import TableModel, random_table
from multidraft.sampling.from_logits import distribution

TOLERANCE = 0.01
RULE = f"iid:global_resolution,tolerance={TOLERANCE},fallback=naive"


def entries(recording: Recording, drawn: list[int] | None) -> dict[tuple[str, float], float]:
    """The deviations that the study reports."""
    text = None if drawn is None else torch.tensor(drawn)
    cells = study.measure(Captured(recording, "task", torch.Generator(), text))
    return {(cell.row, cell.column): cell.total / cell.weight for cell in cells if cell.panel == study.DEVIATION}


def emitted(recording: Recording) -> tuple[torch.Tensor, torch.Tensor]:
    """The target, and the rule's law summed over every tuple, at every position."""
    target = distribution(recording.target.double())
    laws = []
    for p, q in zip(target, distribution(recording.draft.double(), 1.0, study.TOP_K), strict=True):
        s = md.scheme(RULE, drafts=study.DRAFTS)
        drafted, weight = s.tuples(q)
        outcome = s.outcome(p.expand(len(drafted), -1), q.expand(len(drafted), -1), drafted)
        laws.append((weight[:, None] * outcome.law()).sum(0))
    return target, torch.stack(laws)


def test_the_steps_are_those_of_every_tuple() -> None:
    recording, text = random_pairs(3, 12, 4), [1, 5, 7]
    target, laws = emitted(recording)
    found = entries(recording, text)
    single = (laws - target).abs().sum(-1)
    assert single.max() > 1e-4
    name = study.row(TOLERANCE, study.SUM)
    assert found[name, 1.0] == pytest.approx(float(single.mean()), abs=1e-9)
    assert found[name, 2.0] == pytest.approx(float(single[:2].sum()), abs=1e-9)
    ratio = laws[range(3), text] / target[range(3), text]
    assert found[study.row(TOLERANCE, study.LAW), 2.0] == pytest.approx(float((ratio[:2].prod() - 1).abs()), abs=1e-9)


def test_over_all_texts_the_estimate_is_the_norm() -> None:
    recording = random_pairs(2, 5, 1)
    target, laws = emitted(recording)
    mean = sum(
        float(target[0, i] * target[1, j]) * entries(recording, [i, j])[study.row(TOLERANCE, study.LAW), 2.0]
        for i, j in product(range(5), repeat=2)
    )
    exact = (torch.outer(laws[0], laws[1]) - torch.outer(target[0], target[1])).abs().sum()
    assert mean == pytest.approx(float(exact), abs=1e-9)
    assert mean > 1e-4


def test_text_that_the_target_did_not_draw_says_nothing_of_the_law() -> None:
    rows = {row for row, _ in entries(random_pairs(2, 12, 0), None)}
    assert rows == {study.row(t, what) for t in study.TOLERANCES for what in (study.SUM, study.BOUND)}


@pytest.mark.parametrize(("tolerance", "kept"), [(TOLERANCE, True), (0.3, False)])
def test_the_decoder_keeps_the_bound(tolerance, kept) -> None:
    """Two drafted steps of a whole tree, enumerated; a rule that is coarser than it says is found out."""
    target, draft = (random_table(3, 3, model, 0.7) for model in (0, 1))
    config = DecodeConfig(md.scheme(RULE.replace(str(TOLERANCE), str(tolerance))), StaticTree(Tree.parse("2x1")))
    law = first_tokens(step_law(TableModel(target, 3), TableModel(draft, 3), [0], config).law, after(target), 2)
    norm = difference(law, target_law(after(target), 2))
    assert (norm <= 2 * 15 * TOLERANCE) == kept
    assert norm > TOLERANCE  # it is not lossless


def after(target):
    """The target's distributions after the prompt."""
    return lambda tokens: target((0, *tokens))


def difference(law: dict, other: dict) -> float:
    """The 1-norm."""
    return sum(abs(law.get(tokens, 0.0) - other.get(tokens, 0.0)) for tokens in law | other)
