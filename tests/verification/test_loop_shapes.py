"""No loop is reached with shapes that it does not fit; run with bounds checking, and without Numba (Makefile)."""

import importlib.util
import os

import jaxtyping
import pytest
import torch

import multidraft as md
from multidraft.verification import distribution_loops, distributions, loops
from multidraft.verification.laws.anchored import anchors_of
from multidraft.verification.laws.anchored_loops import anchor_lines
from multidraft.verification.rules import coupling_loops

TINY = 5e-324


@pytest.fixture(autouse=True, params=["loops", "tensors"])
def way(request, monkeypatch):
    """Both ways of doing the same, without the checks of type hints, which would come first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    if request.param == "tensors":
        monkeypatch.setattr(loops, "usable", lambda *_: False)


def test_the_process_is_what_the_environment_asks_for():
    """Otherwise the runs of the Makefile would show nothing."""
    assert loops.HAS_NUMBA == (importlib.util.find_spec("numba") is not None)
    if loops.HAS_NUMBA and os.environ.get("NUMBA_BOUNDSCHECK") == "1":
        with pytest.raises(IndexError):
            coupling_loops.next_target(torch.ones(3).numpy(), torch.ones(2).numpy(), 1.0)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_picking_needs_numbers_for_every_row(rows):
    with pytest.raises(md.AdviceError, match="weights and uniform numbers have shapes"):
        distribution_loops.pick(torch.ones(2, 4), torch.zeros(rows, 1).double())


def test_what_is_left_needs_two_of_one_size():
    with pytest.raises(md.AdviceError, match="target and law have shapes"):
        coupling_loops.residual(torch.ones(3), torch.ones(2), 1.0, 0.5)


@pytest.mark.parametrize("total", [TINY, 2 * TINY, 2.3e-308, 1.0, 1e308])
def test_a_pick_never_leaves_the_row(total):
    """A subnormal total times the largest number below one is the total again."""
    weights = torch.tensor([[0.0, total, 0.0], [total, 0.0, 0.0]], dtype=torch.float64)
    uniform = torch.tensor([[0.0, 0.5, 1 - 2.0**-53, 1.0]] * 2, dtype=torch.float64)
    assert distributions.pick(weights, uniform).tolist() == [[1] * 4, [0] * 4]


@pytest.mark.parametrize("drafts", [1, 2, 3, 5])
@pytest.mark.parametrize("wanted", [None, 0, 1, 3, 20])
def test_anchors_fit_into_the_drafts(drafts, wanted):
    draft = torch.tensor([[0.4, 0.6, 0.0], [0.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    found = anchors_of(draft, drafts, wanted)
    assert found.shape == (3, drafts)
    assert found[1].tolist() == [-1] * drafts  # nothing leaks from the row above
    if wanted is not None:
        assert (found >= 0).sum(-1).tolist() == [min(wanted, drafts, count) for count in (2, 0, 3)]


def test_the_loop_itself_stays_within_its_array():
    found = anchor_lines(torch.ones(2, 9).numpy(), 2, 7)
    assert found.tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize("anchors", [None, 0, 1, 2, 20])
@pytest.mark.parametrize("drafts", [1, 2, 4])
@pytest.mark.parametrize("top_up", [True, False])
def test_any_anchors_at_any_node_are_lossless(anchors, drafts, top_up):
    """As a tree with nodes of other numbers of drafts asks for them."""
    generator = torch.Generator().manual_seed(0)
    target, draft = torch.randn(2, 4, generator=generator, dtype=torch.float64).softmax(-1)
    scheme = md.scheme("anchored:lorenz", 3, anchors=anchors, top_up=top_up).with_drafts(drafts)
    drafted, weight = scheme.tuples(draft)
    outcome = scheme.outcome(target.expand(len(drafted), -1), draft.expand(len(drafted), -1), drafted)
    assert torch.allclose(weight @ outcome.law(), target, rtol=0, atol=1e-12)
    assert scheme.draw(draft.expand(50, -1), generator).shape == (50, scheme.law.width)
