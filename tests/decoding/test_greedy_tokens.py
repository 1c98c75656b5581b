"""At T = 0 the last token of a row is its likeliest, taken from the logits: no distribution is made for it."""

from typing import Any

import pytest
import torch

import multidraft as md
from multidraft.decoding import verify
from multidraft.decoding.state import Randomness, Row, Scored
from multidraft.decoding.tree import TokenTree
from multidraft.models.table import TableModel, random_table
from multidraft.sampling.gate import RowFault
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


@pytest.mark.parametrize("tree", TREES)
def test_the_likeliest_tokens_are_written(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list(PROMPT)
    for _ in range(COUNT):
        expected.append(int(LIKELIEST(tuple(expected)).argmax()))
    assert written(tree) == expected[len(PROMPT) :]
    monkeypatch.setattr(verify, "greedy_tokens", lambda *_: {})
    assert written(tree) == expected[len(PROMPT) :]  # drawn from distributions


@pytest.mark.parametrize("tree", TREES)
def test_others_are_caught(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = written(tree)
    monkeypatch.setattr(verify, "most_likely_tokens", lambda logits: logits.topk(2).indices[:, 1])
    assert written(tree) != expected


def test_no_distribution_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = written("1")
    monkeypatch.setattr(verify, "draw_by_device", lambda weights, _: {} if not weights else pytest.fail("drawn"))
    assert written("1") == expected


def test_rows_that_are_left_to_be_drawn() -> None:
    """T = 1, scores that are no numbers, and a row that has a fault."""
    logits = torch.tensor([[[0.0, 1.0]], [[0.0, 1.0]], [[0.0, torch.nan]], [[2.0, 1.0]], [[0.0, -torch.inf]]])
    rows = [Row(Sampling(temperature), Randomness(torch.Generator()), 0, 0) for temperature in (0, 1, 0, 0, 0)]
    scored = Scored(rows, [TokenTree([0], True) for _ in rows], logits)
    scored.faults[3] = RowFault("the draft model", "fails")
    assert verify.greedy_tokens(scored, dict.fromkeys(range(5), 0)) == {0: 1, 4: 0}
