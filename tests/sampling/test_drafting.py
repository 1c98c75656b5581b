"""Answers of one token a line: the law is certain, at any temperature and in any dtype, and faults stay faults."""

import pytest
import torch

from multidraft.sampling.drafting import draft_distributions
from multidraft.sampling.from_logits import distribution
from multidraft.sampling.processors import LogitBias, Processors
from multidraft.sampling.settings import Sampling

SAMPLINGS = [Sampling(0), Sampling(), Sampling(0.7, top_p=0.5), Sampling(for_draft=Sampling(2.0, top_k=1))]
SAMPLINGS += [Sampling(before=Processors([LogitBias({3: -torch.inf, 0: 5.0})]))]  # a forbidden token is all there is
IDS = torch.tensor([[3], [0]])


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_token_is_certain(sampling: Sampling, dtype: torch.dtype) -> None:
    """Also where a second column has none, which is another way."""
    logits, others = torch.tensor([[-1.0], [-9.0]], dtype=dtype, requires_grad=True), torch.full((2, 1), -torch.inf)
    for scores, ids in (logits, IDS), (torch.cat([logits, others.to(dtype)], 1), torch.cat([IDS, 1 - IDS // 3], 1)):
        laws, faults = draft_distributions(scores.detach(), sampling, drafts=1, vocabulary=4, ids=ids)
        assert [(law.ids.tolist(), law.probabilities.tolist()) for law in laws] == [([3], [1.0]), ([0], [1.0])]
        assert not faults


@pytest.mark.parametrize(("score", "vocabulary"), [(float("nan"), 4), (-float("inf"), 4), (0.0, 3)])
def test_faults_stay_faults(score: float, vocabulary: int) -> None:
    laws, faults = draft_distributions(
        torch.tensor([[score], [0.0]]), Sampling(0), drafts=1, vocabulary=vocabulary, ids=IDS
    )
    assert list(faults) == [0]
    assert laws[1].ids.tolist() == [0]


def test_logits_with_gradients_have_a_likeliest_token() -> None:
    assert distribution(torch.tensor([0.0, 2.0, 2.0], requires_grad=True), 0).tolist() == [0, 1, 0]
