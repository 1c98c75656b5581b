"""Draws without waits: their laws, by counting tuples."""

import pytest
import torch
from pretended import counted_waits, device
from scipy.stats import chi2
from torch import Tensor

import multidraft as md
from multidraft.engines import draws
from multidraft.engines.draws import draw_children
from multidraft.transfer import upload

PROBS = torch.tensor([0.5, 0.0, 0.3, 0.2])
TUPLES, FALSE_ALARM = 200_000, 1e-9
NAMES = {"without_replacement": "without_replacement:naive", "iid": "iid:naive"}


def is_far(drawn: Tensor, law: str) -> bool:
    """Whether pairs of tokens have another law, by chi-squared; false alarm at one fixed seed in 1e9."""
    tuples, chances = md.scheme(NAMES[law], drafts=2).tuples(PROBS.double())
    seen = torch.stack([(drawn == pair).all(-1).sum() for pair in tuples])
    expected = TUPLES * chances
    statistic = float(((seen - expected) ** 2 / expected).sum())
    return int(seen.sum()) != TUPLES or statistic > chi2.ppf(1 - FALSE_ALARM, len(tuples) - 1)


def pairs(law: str) -> Tensor:
    return draw_children(PROBS.expand(TUPLES, -1), 2, law, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("law", NAMES)
def test_their_law(law: str) -> None:
    assert not is_far(pairs(law), law)


def test_biased_ones_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_far(pairs("iid"), "without_replacement")
    largest = draws.largest
    monkeypatch.setattr(draws, "largest", lambda scores, count: largest(scores / 1.1, count).flip(-1))
    assert is_far(pairs("without_replacement"), "without_replacement")


def test_positions_stay_empty_where_nothing_is_left() -> None:
    assert draw_children(PROBS, 5, "without_replacement")[3:].tolist() == [-1, -1]
    assert draw_children(PROBS, 5, "top").tolist() == [0, 2, 3, -1, -1]
    with pytest.raises(md.AdviceError, match="choose without_replacement"):
        draw_children(PROBS, 2, "distinct")


@pytest.mark.parametrize("law", [*NAMES, "top"])
def test_they_never_wait(law: str) -> None:
    probs = upload(PROBS.expand(3, 2, -1), device())
    with counted_waits() as waits:
        drawn = draw_children(probs, 2, law)
    assert not waits
    assert drawn.shape == (3, 2, 2)
