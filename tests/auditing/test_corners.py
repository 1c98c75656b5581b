"""Every scheme in every corner: pairs that are near-equal, banned, vanishing, tied; both ways of computing."""

import math

import pytest
import torch
from multidraft_research.audits.adversarial import KINDS, TINY, adversarial
from multidraft_research.audits.corners import Corners, exact_schemes, examine, try_corners
from multidraft_research.audits.mutants import MUTANTS, audit_mutant

import multidraft as md
from multidraft.auditing.pairs import drafting, small_pairs
from multidraft.auditing.parts import subject
from multidraft.verification import loops
from multidraft.verification.laws import Iid
from multidraft.verification.optimum import optimal_acceptance_rate
from multidraft.verification.precision import least
from multidraft.verification.rules.lorenz import lorenz

COMPILED = ["iid:lorenz", "anchored:lorenz"]  # on a CPU; the others run as tensor operations anyway


def by_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "usable", lambda *_: False)


@pytest.mark.parametrize("name", [*exact_schemes(), *(f"{name} as tensor operations" for name in COMPILED)])
@pytest.mark.parametrize("pairs", [1_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_thousand_pairs(name: str, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name, tensors, _ = name.partition(" as")
    if tensors:
        by_tensors(monkeypatch)
    corners = try_corners(name, pairs, seed=1 if tensors else 0)
    assert corners.pairs >= pairs
    assert corners.worst <= 1, corners


DIVIDES = "divides by a difference of totals"


@pytest.mark.parametrize("drafts", [3, 4, 8])
def test_the_audit_catches_a_remainder_divided_by_differences(drafts: int) -> None:
    """By one of its own pairs, whatever the number of drafts from three on."""
    pairs = [pair[1:] for pair in small_pairs(Iid(drafts), 0) if "three drafts" in pair[0]]
    assert audit_mutant(DIVIDES, drafts=drafts, vocabulary=(), pairs=pairs).guilty() == ["exact"]


def test_corners_catch_a_remainder_divided_by_differences() -> None:
    target, draft = adversarial("near_equal", 100, 4, seed=0)
    wrong, right = Corners(), Corners()
    examine(right, md.scheme("iid:lorenz", 4), target, draft)
    examine(wrong, subject(MUTANTS[DIVIDES].rule, "iid", 4, {}), target, draft)
    assert right.worst <= 1 < wrong.worst, (right, wrong)


@pytest.mark.parametrize("top_up", [True, False])
@pytest.mark.parametrize("p", TINY)
@pytest.mark.parametrize("compiled", [True, False])
def test_an_anchor_that_the_target_hardly_allows(p: float, top_up: bool, compiled: bool, monkeypatch) -> None:
    """It claimed 1e275 of the law; now no more than its probability, on average over the tuples."""
    if not compiled:
        by_tensors(monkeypatch)
    draft = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    target = torch.tensor([p, 0.5, 1 / 3, 1 / 6], dtype=torch.float64)
    corners = Corners()
    examine(corners, md.scheme("anchored:lorenz", 4, anchors=1, top_up=top_up), target[None], draft[None])
    assert corners.worst <= 1, corners


@pytest.mark.parametrize("drafts", [3, 8, 16, 64])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compiled", [True, False])
def test_many_drafts(drafts: int, kind: str, compiled: bool, monkeypatch) -> None:
    """Up to 64 drafts of two tokens: the rule looks at how often each was drawn, so 65 tuples stand for all."""
    if not compiled:
        by_tensors(monkeypatch)
    law = md.scheme("iid:lorenz", drafts).law
    ones = torch.arange(drafts + 1)
    drafted = (torch.arange(drafts) < ones[:, None]).long()
    ways = torch.tensor([math.comb(drafts, k) for k in range(drafts + 1)], dtype=torch.float64)
    for target, draft in zip(*adversarial(kind, 20, 2, seed=drafts), strict=True):
        weight = ways * draft[1] ** ones * draft[0] ** (drafts - ones)
        shape = (drafts + 1, 2)
        outcome = lorenz(target.expand(shape), draft.expand(shape), drafted, law)
        assert torch.allclose(weight @ outcome.law(), target, rtol=0, atol=1e-12)
        assert torch.allclose(outcome.accept.sum(-1) + outcome.residual.sum(-1), torch.ones(()).double(), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 300, 128_256])
@pytest.mark.parametrize("name", exact_schemes())
def test_large_vocabularies(name: str, size: int, dtype: torch.dtype) -> None:
    """Drawn tuples alone: every outcome a law."""
    scheme = md.scheme(name, md.scheme(name).law.fixed_drafts or 5)
    for kind in KINDS if size < 100_000 else ["near_equal", "banned"]:
        target, draft = (x.to(dtype) for x in adversarial(kind, 2, size, seed=size))
        draft = drafting(scheme.law, draft)
        drafted = scheme.draw(draft, torch.Generator().manual_seed(0))
        outcome = scheme.outcome(target, draft, drafted)
        total = outcome.accept.double().sum(-1) + outcome.residual.double().sum(-1)
        assert (outcome.accept >= 0).all()
        assert (outcome.residual >= 0).all()
        assert torch.allclose(total, torch.ones_like(total), atol=1e-10 if dtype == torch.float64 else 1e-5), kind
        assert (outcome.law()[target == 0] == 0).all()


@pytest.mark.parametrize(
    "name", ["without_replacement:recursive_rejection", "greedy:maximal_coupling", "spechub:spechub"]
)
def test_the_optimum_counts_what_the_law_draws(name: str) -> None:
    """A mass of 1e-300 beside one: neither drawn as a second token nor counted on. One of 1e-280 is both."""
    for mass, drawn in ((1e-300, False), (1e-280, True)):
        target, draft = torch.tensor([[0.0, 1.0], [1.0, mass]], dtype=torch.float64)
        scheme = md.scheme(name, 2)
        drafted, _ = scheme.tuples(draft)
        assert (1 in drafted[0].tolist()) == drawn == (mass >= least(torch.float64))
        rate = optimal_acceptance_rate(target, draft, scheme.law.name, drafts=2)
        assert float(rate) == pytest.approx(float(drawn), abs=1e-9)


@pytest.mark.parametrize("drafts", [1, 2])
@pytest.mark.parametrize("name", exact_schemes())
def test_precisions_may_differ(name: str, drafts: int) -> None:
    """A float32 target with a float64 draft, and the other way round: the outcome has the target's precision."""
    scheme = md.scheme(name, md.scheme(name).law.fixed_drafts or drafts)
    target, draft = adversarial("peaked", 3, 4, seed=0)
    for p, q in ((target.float(), draft), (target, draft.float())):
        q = drafting(scheme.law, q)
        outcome = scheme.outcome(p, q, scheme.draw(q, torch.Generator().manual_seed(0)))
        assert outcome.law().dtype == p.dtype
        assert torch.allclose(outcome.law().sum(-1).double(), torch.ones(3).double(), atol=1e-6)
