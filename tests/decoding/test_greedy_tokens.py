"""At T = 0 the last token of a row is its likeliest, taken from the logits: no distribution is made for it."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor

import multidraft as md
from multidraft.decoding import targets
from multidraft.decoding.state import Randomness, RunningRow
from multidraft.decoding.targets import LikeliestToken, NodeTarget, Targets, stack_targets
from multidraft.decoding.tree import TokenTree
from multidraft.decoding.walks import WalkResult
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.sampling.row_faults import RowFault
from multidraft.sampling.settings import Sampling

SIZE, COUNT, PROMPT = 8, 12, [1, 2]
SETTINGS: dict[str, Any] = dict(temperature=0, max_new_tokens=COUNT, eos_token_id=[])
TREES = ["1", "2x1", "3x2x1"]
LIKELIEST = random_table(SIZE, 1, 3)


def written(tree: str, **settings: Any) -> list[int]:
    """What a table writes beside a draft model that is often wrong, and drafts at T = 1."""
    target, draft = TableModel(LIKELIEST, SIZE), TableModel(random_table(SIZE, 1, 4), SIZE)
    tokens, _ = md.generate(target, draft, [PROMPT], tree=tree, draft_temperature=1.0, **(SETTINGS | settings))
    return tokens[0].tolist()


class Same(LogitsProcessor):
    """Changes nothing, but who knows: with a processor the token is drawn from a distribution."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores


@pytest.mark.parametrize("tree", TREES)
def test_the_likeliest_tokens_are_written(tree: str) -> None:
    expected = list(PROMPT)
    for _ in range(COUNT):
        expected.append(int(LIKELIEST(tuple(expected)).argmax()))
    assert written(tree) == expected[len(PROMPT) :]
    assert written(tree, logits_processor=[Same()]) == expected[len(PROMPT) :]


@pytest.mark.parametrize("tree", TREES)
def test_others_are_caught(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = written(tree)
    monkeypatch.setattr(targets, "most_likely_tokens", lambda logits: logits.topk(2).indices[:, 1])
    assert written(tree) != expected


@pytest.mark.parametrize("tree", TREES)
def test_no_distribution_is_asked_for(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = written(tree)
    for name in ("target_distributions", "pick_each"):
        monkeypatch.setattr(targets, name, lambda *_, name=name: pytest.fail(name))
    assert written(tree) == expected


def test_a_rule_sees_what_it_sees_of_the_distribution() -> None:
    """The places of the token that is certain are those of its distribution, whether it can be drafted or not."""
    logits, ids = torch.tensor([0.0, 3.0, 1.0]), np.array([2, 1])
    for line in (logits, logits.flip(0)):
        certain = LikeliestToken(int(line.argmax()), line, ids)
        whole = NodeTarget(certain.probabilities, ids)
        assert torch.equal(stack_targets([certain]), stack_targets([whole]))
        assert torch.equal(certain.probabilities, torch.eye(3)[line.argmax()])


def test_rows_that_are_left_to_be_drawn() -> None:
    """T = 1, scores that are no numbers, and a row that has a fault."""
    logits = torch.tensor([[[0.0, 9.0]], [[99.0, 1.0]], [[0.0, torch.nan]], [[2.0, 1.0]], [[0.0, -torch.inf]]])
    rows = [RunningRow(Sampling(temperature), Randomness(torch.Generator()), 0, 0) for temperature in (0, 1, 0, 0, 0)]
    trees, fault = [TokenTree([0], True) for _ in rows], RowFault("the draft model", "fails")
    node_targets = Targets(rows, trees, logits, {3: fault})
    tokens = node_targets.draw([WalkResult() for _ in rows], [0.5] * 5)
    kinds = {row: type(target) for (row, _), target in node_targets.known.items()}
    assert kinds == dict.fromkeys((0, 1, 2, 4), NodeTarget)  # one of the greedy rows has no likeliest token
    assert [tokens[row] for row in (0, 1, 3, 4)] == [1, 0, -1, 0]
    assert [*node_targets.faults] == [3, 2]
