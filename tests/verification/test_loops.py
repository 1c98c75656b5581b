"""The compiled loops give what the tensor operations of the Lorenz rule give, wherever either of them branches."""

import importlib.util
import os

import jaxtyping
import pytest
import torch

import multidraft as md
from multidraft.verification import distributions, loops
from multidraft.verification.laws import Anchored
from multidraft.verification.laws.anchored_loops import draw_anchored, draw_lines
from multidraft.verification.precision import next_target
from multidraft.verification.registry import SCHEMES
from multidraft.verification.rules import lorenz_loops
from multidraft.verification.rules.schedule import schedule

EXACT = 1e-12


def pair(seed: int, size: int, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A target and a draft distribution of one of some kinds that matter to the schedule."""
    generator = torch.Generator().manual_seed(seed)
    target, draft = (2 * torch.randn(2, size, generator=generator, dtype=torch.float64)).softmax(-1)
    if kind == "truncated draft":  # tokens that cannot be drafted, and resets
        draft[torch.rand(size, generator=generator) < 0.6] = 0
        draft = draft / draft.sum() if draft.sum() > 0 else draft
    elif kind == "truncated target":
        target[torch.rand(size, generator=generator) < 0.6] = 0
        target = target / target.sum().clamp(min=1e-9)
    elif kind == "ties":
        target, draft = target.mul(4).round().add(1), draft.mul(4).round().add(1)
        target, draft = target / target.sum(), draft / draft.sum()
    elif kind == "equal":
        draft = target.clone()
    elif kind == "part of a target":  # as the deferred walk asks
        target = 0.3 * target
    return target, draft


KINDS = ["any", "truncated draft", "truncated target", "ties", "equal", "part of a target"]


@pytest.mark.parametrize("draft_probability", [1.0, 0.6])
@pytest.mark.parametrize("drafts", [2, 3, 5, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_the_loops_give_the_schedule(kind, drafts, draft_probability):
    for seed in range(8):
        target, draft = (rows.expand(2, -1) for rows in pair(seed, 12, kind))
        count = torch.tensor([drafts, 1])
        draws = torch.multinomial(draft + 1e-9, drafts, replacement=True, generator=torch.Generator().manual_seed(seed))
        draws[1, 1:] = -1
        rows = zip(target.numpy(), draft.numpy(), count.tolist(), strict=True)
        ours = list(lorenz_loops.nodes(rows, draft_probability))
        plain = schedule(target, draft, count, draft_probability)
        remainder = next_target(plain.remainder(), target)
        if kind not in ("ties", "equal"):  # where ratios are equal, any order is right
            for row, node in enumerate(ours):
                assert torch.from_numpy(node.after).allclose(remainder[row], rtol=0, atol=EXACT)
                accept = torch.from_numpy(node.accept(draws[row].numpy()))
                assert accept.allclose(plain.accept(draws)[row], rtol=0, atol=EXACT)


@pytest.mark.parametrize("name", ["iid:lorenz", "anchored:lorenz"])
@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_are_lossless(name, kind, monkeypatch):
    """The law of the emitted token, summed over all tuples, where Numba is not installed too."""
    target, draft = pair(3, 5, kind)
    scheme = md.scheme(name, 3)
    drafted, weight = scheme.tuples(draft)
    many = (len(drafted), -1)
    for prepare in (lambda _: None, without_numba):
        prepare(monkeypatch)
        outcome = scheme.outcome(target.expand(many), draft.expand(many), drafted)
        assert torch.allclose(weight @ outcome.law(), target, rtol=0, atol=EXACT)


@pytest.mark.skipif(not loops.HAS_NUMBA, reason="without Numba no loop is asked")
def test_a_loop_that_forgets_a_phase_is_caught(monkeypatch):
    """The biased twin: what survives one phase is left out."""
    target, draft = pair(3, 5, "any")
    scheme = md.scheme("iid:lorenz", 3)
    drafted, weight = scheme.tuples(draft)
    right = lorenz_loops.phases

    def forgetful(*arguments):
        columns, *rest = right(*arguments)
        columns[3, 1] = 1.0
        return columns, *rest

    monkeypatch.setattr(lorenz_loops, "phases", forgetful)
    outcome = scheme.outcome(target.expand(len(drafted), -1), draft.expand(len(drafted), -1), drafted)
    assert (weight @ outcome.law() - target).abs().max() > 1e-3


def without_numba(monkeypatch) -> None:
    monkeypatch.setattr(loops, "usable", lambda *_: False)


@pytest.mark.parametrize("anchors", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("numba", [True, False])
def test_any_number_of_anchors_is_lossless(anchors, numba, monkeypatch):
    """As many anchors as drafts, too, where nothing is left to chance."""
    if not numba:
        without_numba(monkeypatch)
    for seed in range(5):
        target, draft = pair(seed, 5, "any")
        scheme = md.scheme("anchored:lorenz", 3, anchors=anchors)
        drafted, weight = scheme.tuples(draft)
        outcome = scheme.outcome(target.expand(len(drafted), -1), draft.expand(len(drafted), -1), drafted)
        assert torch.allclose(weight @ outcome.law(), target, rtol=0, atol=EXACT)
        assert float(weight @ outcome.acceptance()) == pytest.approx(
            float(scheme.acceptance_rate(target, draft)), abs=EXACT
        )


@pytest.mark.parametrize("name", [name for name in SCHEMES if md.scheme(name).law.fixed_drafts is None])
def test_what_counts_as_a_coupling_is_one(name):
    """With one draft: accepted with min(1, p/q), and the rest in proportion to (p - q)_+; `top` and `naive` are not."""
    scheme = md.scheme(name, 1)
    target, draft = pair(5, 4, "any")
    drafted = torch.tensor([[-1, 2] if name.startswith("anchored") else [2]])
    if scheme.is_coupling:
        outcome = scheme.outcome(target[None], draft[None], drafted)
        accept = (target / draft).clamp(max=1)[2]
        assert outcome.accept.sum().item() == pytest.approx(accept.item(), abs=EXACT)
        over = (target - draft).clamp(min=0)
        assert torch.allclose(outcome.residual[0], (1 - accept) * over / over.sum(), rtol=0, atol=EXACT)
    assert scheme.is_coupling == (
        name.split(":")[1] in {"lorenz", "binned_lorenz", "k_sequential", "recursive_rejection", "maximal_coupling"}
        and not scheme.law.several
    )
    assert not md.scheme(name, 2).is_coupling


# --- no loop is reached with shapes that it does not fit; run with bounds checking, and without Numba (Makefile) ------

TINY = 5e-324
both = pytest.mark.usefixtures("way")


@pytest.fixture(params=["loops", "tensors"])
def way(request, monkeypatch):
    """Both ways of doing the same, without the checks of type hints, which would come first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    if request.param == "tensors":
        monkeypatch.setattr(loops, "usable", lambda *_: False)


@both
def test_the_process_is_what_the_environment_asks_for():
    """Otherwise the runs of the Makefile would show nothing."""
    assert loops.HAS_NUMBA == (importlib.util.find_spec("numba") is not None)
    if loops.HAS_NUMBA and os.environ.get("NUMBA_BOUNDSCHECK") == "1":
        with pytest.raises(IndexError):
            lorenz_loops.next_target(torch.ones(3).numpy(), torch.ones(2).numpy())


@both
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_drawing_needs_numbers_for_every_row(rows):
    with pytest.raises(md.AdviceError, match="draft and uniform numbers have shapes"):
        draw_anchored(torch.ones(2, 4), torch.zeros(rows, 5).double(), Anchored(2))


@both
def test_a_rule_needs_a_target_and_a_tuple_of_the_drafts_size():
    law, draft, drafted = md.scheme("iid:lorenz", 2).law, torch.ones(1, 2), torch.zeros(1, 2).long()
    with pytest.raises(md.AdviceError, match="target and draft have shapes"):
        lorenz_loops.lorenz(torch.ones(1, 3), draft, drafted, law)
    with pytest.raises(md.AdviceError, match="drafted and the law's width have shapes"):
        lorenz_loops.lorenz(draft, draft, drafted.expand(3, -1), law)


@both
@pytest.mark.parametrize("total", [TINY, 2 * TINY, 2.3e-308, 1.0, 1e308])
def test_a_pick_never_leaves_the_row(total):
    """A subnormal total times the largest number below one is the total again."""
    weights = torch.tensor([[0.0, total, 0.0], [total, 0.0, 0.0]], dtype=torch.float64)
    uniform = torch.tensor([[0.0, 0.5, 1 - 2.0**-53, 1.0]] * 2, dtype=torch.float64)
    assert distributions.pick(weights, uniform).tolist() == [[1] * 4, [0] * 4]


@both
@pytest.mark.parametrize("drafts", [1, 2, 3, 5])
@pytest.mark.parametrize("wanted", [None, 0, 1, 3, 20])
def test_anchors_fit_into_the_drafts(drafts, wanted):
    draft = torch.tensor([[0.4, 0.6, 0.0], [0.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    law = Anchored(drafts, anchors=wanted)
    found = law.draw(draft, torch.zeros(3, law.width).double())
    assert found.shape == (3, law.width)
    assert found[1].tolist() == [-1] * law.width  # nothing leaks from the row above
    assert found[:, :drafts].equal(law.sure_tokens(draft))
    if wanted is not None:
        assert (found[:, :drafts] >= 0).sum(-1).tolist() == [min(wanted, drafts, count) for count in (2, 0, 3)]


@both
def test_the_loop_itself_stays_within_its_array():
    found = torch.full((2, 4), -1).numpy()
    draw_lines(found, torch.ones(2, 9).numpy(), torch.zeros(2, 4).double().numpy(), 2, 7, False, 1e-30)
    assert found.tolist() == [[0, 1, -1, -1]] * 2


@both
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
