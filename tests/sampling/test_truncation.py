"""Top-k, top-p and min-p of a CPU: the same distributions as by tensor operations."""

import numpy as np
import pytest
import torch

from multidraft.sampling import truncation
from multidraft.sampling.from_logits import (
    distributions,
    likely_enough,
    most_likely_logits,
    nucleus,
    pending_distributions,
    softmax_and_largest,
)
from multidraft.sampling.settings import Sampling
from multidraft.sampling.truncation import truncated_lines

SETTINGS: list[tuple[int | None, float | None, float]] = [
    *((1, None, 0.0), (3, None, 0.0), (20, 0.8, 0.0), (None, 0.9, 0.0), (None, 0.3, 0.0), (7, 1e-6, 0.0)),
    *((5000, 0.5, 0.0), (None, None, 0.05), (None, None, 1.0), (None, None, 1e-9), (40, 0.95, 0.05), (None, 0.9, 0.3)),
]


def some_lines(size: int, seed: int) -> torch.Tensor:
    """Lines with equal scores, tokens that cannot come, a few likely tokens, and one likely token."""
    chance = torch.Generator().manual_seed(seed)
    lines = (torch.randn(6, size, generator=chance) * 4).round() / 2
    lines[1, torch.rand(size, generator=chance) < 0.5] = -torch.inf
    lines[2] = torch.randn(size, generator=chance)
    lines[3, torch.randint(size, (9,), generator=chance)] += 9.0
    lines[4] = -torch.inf
    lines[4, size // 2] = 1.0
    return lines


def differ(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether distributions have other tokens, or other probabilities but for rounding."""
    return not (torch.equal(found > 0, expected > 0) and torch.allclose(found, expected, atol=1e-6))


@pytest.mark.parametrize("size", [2, 37, 1000, 5003])
@pytest.mark.parametrize(("top_k", "top_p", "min_p"), SETTINGS)
@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0])
def test_lines_are_as_by_tensor_operations(
    size: int, top_k: int | None, top_p: float | None, min_p: float, temperature: float
):
    lines = some_lines(size, size)
    expected, _ = softmax_and_largest(most_likely_logits(lines, top_k), temperature)
    expected = expected if top_p is None else nucleus(expected, top_p)
    expected = likely_enough(expected, min_p)
    found, bad_rows = distributions(lines, temperature, top_k, top_p, min_p)
    assert bad_rows == []
    assert not differ(found, expected)
    assert found.sum(-1).tolist() == pytest.approx([1.0] * len(lines), abs=1e-6)


def test_a_nucleus_that_is_larger_than_its_head_is_found_otherwise():
    flat = torch.linspace(0, 1e-4, 3 * truncation.TOP_P_HEAD)[None]
    assert truncated_lines(flat, 1.0, None, 0.9, 0.0)[1:] == ([], [0])
    found, _ = distributions(flat, 1.0, None, 0.9)
    assert (found > 0).sum() == pytest.approx(0.9 * flat.shape[1], abs=2)


@pytest.mark.parametrize("cuts", SETTINGS)
def test_a_line_does_not_depend_on_the_others(cuts: tuple[int | None, float | None, float]):
    """To the bit, also beside lines with a large nucleus."""
    size = 3 * truncation.TOP_P_HEAD
    lines = torch.cat([some_lines(size, 1), torch.linspace(0, 1e-4, size)[None], torch.zeros(1, size)])
    together = distributions(lines, 1.0, *cuts)[0]
    for line, found in zip(lines, together, strict=True):
        assert torch.equal(found, distributions(line[None], 1.0, *cuts)[0][0])


def test_lines_that_make_no_distribution_are_named():
    lines = some_lines(1000, 0)
    lines[1, 3], lines[3, 7], lines[4] = torch.nan, torch.inf, -torch.inf
    for cuts in SETTINGS:
        found, bad_rows = distributions(lines, 1.0, *cuts)
        assert bad_rows == [1, 3, 4]
        assert not differ(found[[0, 2]], distributions(lines[[0, 2]], 1.0, *cuts)[0])


def test_another_choice_among_equals_is_seen(monkeypatch: pytest.MonkeyPatch):
    """The first ones in place of the last."""
    lines = torch.zeros(1, 8)
    expected, _ = pending_distributions(lines, Sampling(top_p=0.5))
    assert not differ(distributions(lines, 1.0, None, 0.5)[0], expected)

    def first_ones(weights: np.ndarray, wanted: float) -> tuple[np.ndarray, bool]:
        return np.where(weights.cumsum() - weights < wanted, weights, 0.0), True

    monkeypatch.setattr(truncation, "nucleus_of", first_ones)
    assert differ(distributions(lines, 1.0, None, 0.5)[0], expected)
