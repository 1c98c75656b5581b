"""The Lorenz rule over bins is lossless whatever the bins, and loses no more acceptance than it says."""

from itertools import product

import pytest
import torch
from multidraft_research.solvers.binned_lorenz import BinnedLorenz, binned_schedule
from multidraft_research.studies.acceptance import random_pairs
from test_rules import EXACT, law_of, worst_deviation
from torch import Tensor

import multidraft as md
from multidraft.verification.law import Law
from multidraft.verification.laws import Anchored, Iid

COARSE, FINE = 4, 512
LAWS = [kind(drafts, a) for kind, drafts, a in product((Iid, Anchored), (2, 3), (1.0, 0.6))]


@pytest.mark.parametrize("total", [1.0, 0.37])
@pytest.mark.parametrize("bins", [2, 4])
@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.name}-{law.drafts}-{law.draft_probability}")
def test_law_is_the_target_with_fewer_bins_than_tokens(law: Law, bins: int, total: float) -> None:
    worst = worst_deviation(BinnedLorenz(bins), law, total)
    assert worst[0] < EXACT, worst


def softmaxes(vocabulary: int, rows: int = 4) -> tuple[Tensor, Tensor]:
    """A target and a draft like two models'."""
    pairs = random_pairs(rows, vocabulary, 1)
    return pairs.target.double().softmax(-1), pairs.draft.double().softmax(-1)


@pytest.mark.parametrize("law", [Iid(2), Iid(3), Anchored(2)], ids=str)
def test_many_tokens_share_a_bin(law: Law) -> None:
    p, q = softmaxes(12)
    emitted, rate = law_of(BinnedLorenz(5), law, p, q)
    assert torch.allclose(emitted, p, rtol=0, atol=EXACT)
    if isinstance(law, Iid):
        plan = binned_schedule(5, p, q, torch.full((len(p),), law.drafts)).plan
        assert torch.allclose(rate, plan.optimum, rtol=0, atol=EXACT)


def rates(bins: int, drafts: int) -> tuple[Tensor, Tensor, Tensor]:
    """The acceptance rate, what it is at least, and the optimum, at many more tokens than bins."""
    p, q = softmaxes(3000)
    optimum = md.optimal_acceptance_rate(p, q, law="iid", drafts=drafts)
    rate = binned_schedule(bins, p, q, torch.full((len(p),), drafts)).plan.optimum
    return rate, BinnedLorenz(bins).least(optimum, drafts), optimum


@pytest.mark.parametrize("drafts", [2, 4, 8])
def test_it_loses_no_more_than_it_says(drafts: int) -> None:
    """Coarse bins lose what fine ones may not, so that the bound says something."""
    rates_by_bins = {bins: rates(bins, drafts) for bins in (COARSE, 16, 64, FINE)}
    for rate, least, optimum in rates_by_bins.values():
        assert (rate <= optimum + EXACT).all()
        assert (rate >= least).all()
    (coarse, *_), (fine, least, optimum) = rates_by_bins[COARSE], rates_by_bins[FINE]
    assert (coarse < least - 0.01).all()
    assert (optimum - fine < 0.02).all()
    p, _ = softmaxes(3000)
    equal = binned_schedule(COARSE, p, p, torch.full((len(p),), drafts)).plan.optimum
    assert torch.allclose(equal, torch.ones_like(equal), rtol=0, atol=EXACT)


@pytest.mark.parametrize("bins", [1, 2.5, True])
def test_bad_bins_get_advice(bins: object) -> None:
    with pytest.raises(md.AdviceError, match="bins"):
        md.scheme("iid:binned_lorenz", bins=bins)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """One row has an anchor and a single draw, which is coupled; the other has two draws, which go through bins."""
    p, q = softmaxes(300, rows=2)
    q[0] = q[0] / 4 + 0.75 * torch.nn.functional.one_hot(torch.tensor(7), 300)
    q[1] = q[1] / 8 + 7 / 8 / 300  # flat: no anchor
    scheme = md.scheme("anchored:binned_lorenz,bins=8", drafts=2)
    drafted = scheme.draw(q, torch.Generator().manual_seed(0))
    assert (drafted[:, 0] >= 0).tolist() == [True, False]
    together = scheme.verify(p, q, drafted)
    for row in range(2):
        alone = scheme.verify(p[row], q[row], drafted[row])
        assert together.accept[row].equal(alone.accept)
        assert together.residual[row].equal(alone.residual)
