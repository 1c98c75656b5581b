"""No loop is reached with shapes that it does not fit; run with bounds checking, and without Numba (Makefile)."""

import importlib.util
import os

import jaxtyping
import pytest
import torch

import multidraft as md
from multidraft.verification import distributions, loops
from multidraft.verification.laws import Anchored
from multidraft.verification.laws.anchored_loops import draw_anchored, draw_lines
from multidraft.verification.rules import lorenz_loops

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
            lorenz_loops.next_target(torch.ones(3).numpy(), torch.ones(2).numpy())


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_drawing_needs_numbers_for_every_row(rows):
    with pytest.raises(md.AdviceError, match="draft and uniform numbers have shapes"):
        draw_anchored(torch.ones(2, 4), torch.zeros(rows, 5).double(), Anchored(2))


def test_a_rule_needs_a_target_and_a_tuple_of_the_drafts_size():
    law, draft, drafted = md.scheme("iid:lorenz", 2).law, torch.ones(1, 2), torch.zeros(1, 2).long()
    with pytest.raises(md.AdviceError, match="target and draft have shapes"):
        lorenz_loops.lorenz(torch.ones(1, 3), draft, drafted, law)
    with pytest.raises(md.AdviceError, match="the rows of draft and drafted have shapes"):
        lorenz_loops.lorenz(draft, draft, drafted.expand(3, -1), law)


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
    law = Anchored(drafts, anchors=wanted)
    found = law.draw(draft, torch.zeros(3, law.width).double())
    assert found.shape == (3, law.width)
    assert found[1].tolist() == [-1] * law.width  # nothing leaks from the row above
    assert found[:, :drafts].equal(law.anchor_tokens(draft))
    if wanted is not None:
        assert (found[:, :drafts] >= 0).sum(-1).tolist() == [min(wanted, drafts, count) for count in (2, 0, 3)]


def test_the_loop_itself_stays_within_its_array():
    found = torch.full((2, 4), -1).numpy()
    draw_lines(found, torch.ones(2, 9).numpy(), torch.zeros(2, 4).double().numpy(), 2, 7, False, 1e-30)
    assert found.tolist() == [[0, 1, -1, -1]] * 2


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
