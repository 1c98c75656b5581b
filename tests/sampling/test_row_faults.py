"""Every line sums to one, and what makes no distribution is the fault of its own line, by name."""

import pickle
from functools import partial

import pytest
import torch
from decoded import roots
from torch import Tensor
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TopPLogitsWarper,
)

from multidraft.sampling.drafting import MAX_FULL_VOCABULARY, MAX_SUPPORT, MAX_TAIL, draft_distributions
from multidraft.sampling.from_logits import distribution, softmax, target_distributions
from multidraft.sampling.processors import Processors
from multidraft.sampling.row_faults import RowFault
from multidraft.sampling.settings import Sampling
from multidraft.verification import loops

SIZE, EXACT = 40, 1e-12
NAN, INF = float("nan"), float("inf")
ONE_ULP = 1e-6  # of a law in float32, whatever its size


def real_like(size: int) -> Tensor:
    """Shapes that real vocabularies have: flat, peaked, a long tail, nearly all forbidden."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(size, generator=generator)
    peak = torch.cat([torch.full((1,), 16.0), torch.zeros(size - 1)])
    few_columns = torch.where(torch.arange(size) < 3, noise, -INF)
    return torch.stack([torch.zeros(size), peak, 4 * noise, noise - torch.arange(1, size + 1).log(), few_columns])


@pytest.mark.parametrize("size", [49_152, 262_144])
@pytest.mark.parametrize("temperature", [0.001, 0.7, 100.0])
@pytest.mark.parametrize("compiled", [True, False])
def test_laws_over_real_vocabularies_sum_to_one(size, temperature, compiled, monkeypatch):
    """PyTorch's float32 softmax on a CPU is off by 1e-5 to 1e-4 there."""
    logits = real_like(size)
    monkeypatch.setattr(loops, "usable", lambda *_: compiled)
    laws, bad = softmax(logits, temperature)
    assert bad == []
    assert (laws.sum(-1, dtype=torch.float64) - 1).abs().max() < ONE_ULP
    assert torch.allclose(laws, (logits.double() / temperature).softmax(-1).float(), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("settings", [dict(top_k=50), dict(top_p=0.95), dict(temperature=0.7, top_k=50, top_p=0.5)])
def test_truncated_laws_sum_to_one(settings):
    laws = distribution(real_like(49_152), **settings)
    assert (laws.sum(-1, dtype=torch.float64) - 1).abs().max() < ONE_ULP


def test_top_p_breaks_ties_as_a_stable_sort_does(monkeypatch):
    """Half precision has many. Transformers keeps what torch.sort puts last, which is undefined among equals."""
    monkeypatch.setattr(torch, "sort", partial(torch.sort, stable=True))
    generator = torch.Generator().manual_seed(1)
    logits = (2 * torch.randn(200, 300, generator=generator)).bfloat16().double()
    for top_p in (0.1, 0.3, 0.7, 0.9):
        expected = TopPLogitsWarper(top_p)(None, logits).softmax(-1)
        assert torch.allclose(distribution(logits, top_p=top_p), expected, atol=EXACT)


@pytest.mark.parametrize(
    "sampling", [Sampling(0.7), Sampling(1.3, top_k=5), Sampling(0.9, top_p=0.8), Sampling(1, 9, 0.5)]
)
def test_a_draft_law_is_the_target_s_own_where_its_support_is_enough(sampling):
    logits = torch.randn(3, SIZE, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    laws, _ = draft_distributions(logits, sampling, drafts=2, vocabulary=SIZE)
    for (tokens, probabilities), dense in zip(laws, target_distributions(logits, sampling)[0], strict=True):
        assert probabilities == pytest.approx(dense[tokens].numpy(), abs=EXACT)
        assert float(dense[tokens].sum()) == pytest.approx(1)


@pytest.mark.parametrize("top_p", [0.2, 0.5, 0.9])
def test_of_equal_tokens_at_its_edge_a_draft_s_nucleus_has_those_of_the_target_s(top_p):
    """Half precision has many; a token that the target's nucleus lacks is never accepted."""
    logits = torch.randn(50, SIZE, generator=torch.Generator().manual_seed(3)).bfloat16().double()
    logits[:, 1:] = logits[:, :-1].where(torch.arange(SIZE - 1) % 2 == 0, logits[:, 1:])  # pairs
    sampling = Sampling(1, top_p=top_p)
    laws, _ = draft_distributions(logits, sampling, drafts=2, vocabulary=SIZE)
    for (tokens, _), dense in zip(laws, target_distributions(logits, sampling)[0], strict=True):
        assert tokens.tolist() == dense.nonzero()[:, 0].tolist()


def test_a_large_vocabulary_is_cut_and_hardly_any_of_the_law_is_lost():
    """The most likely ones are drafted, in ascending order; a small vocabulary keeps all, a flat law what it may."""
    generator = torch.Generator().manual_seed(5)
    for size, spread in ((MAX_FULL_VOCABULARY, 1), (20 * MAX_FULL_VOCABULARY, 6), (20 * MAX_FULL_VOCABULARY, 0.5)):
        logits = spread * torch.randn(1, size, generator=generator, dtype=torch.float64)
        ((tokens, probabilities),), _ = draft_distributions(logits, Sampling(), drafts=2, vocabulary=size)
        whole, count = logits[0].softmax(-1), len(tokens)
        assert tokens.tolist() == whole.topk(count).indices.sort().values.tolist()
        assert count in {1: [MAX_FULL_VOCABULARY], 6: range(2, MAX_SUPPORT), 0.5: [MAX_SUPPORT]}[spread]
        assert spread == 0.5 or whole[tokens].sum() > 1 - MAX_TAIL
        assert torch.allclose(torch.from_numpy(probabilities), whole[tokens] / whole[tokens].sum(), atol=EXACT)


def test_of_equal_scores_at_the_edge_the_first_are_drafted():
    size = 3 * MAX_SUPPORT
    tokens = draft_distributions(torch.zeros(1, size), Sampling(), drafts=2, vocabulary=size)[0][0].ids
    assert tokens.tolist() == list(range(MAX_SUPPORT))


class Elsewhere(Tensor):
    """Of a tensor that says that it is on another device only the likeliest columns are brought over."""

    is_cpu = False


@pytest.mark.parametrize("settings", [dict(top_p=0.3), dict(top_p=0.3, top_k=700), dict(top_p=0.5, temperature=0.7)])
def test_top_p_of_a_draft_is_a_share_of_all_columns_on_every_device(settings):
    """A flat law: the columns that are brought over hold half of it, which top-p once took for all."""
    size, sampling = 3 * MAX_SUPPORT, Sampling(**settings)
    logits = torch.randn(2, size, generator=torch.Generator().manual_seed(3))
    on_cpu, elsewhere = (
        draft_distributions(values, sampling, drafts=2, vocabulary=size)[0]
        for values in (logits, logits.as_subclass(Elsewhere))
    )
    for values, other in zip(on_cpu, elsewhere, strict=True):
        assert values.ids.tolist() == other.ids.tolist()
        assert values.probabilities == pytest.approx(other.probabilities, rel=1e-5)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0), Sampling(top_p=0.9), "processed"])
def test_columns_of_a_reduced_vocabulary_are_their_tokens(sampling):
    """Columns without a token, and those beyond the target's, are never drafted."""
    if sampling == "processed":
        sampling = Sampling(before=Processors([SuppressTokensLogitsProcessor([7])]))
    ids, logits = torch.tensor([[9, 7, 0, 0], [3, 5, 4, 8]]), torch.tensor([[1.0, 2, -INF, -INF], [0, 1, 2, 3]])
    first, second = draft_distributions(logits, sampling, drafts=2, vocabulary=10, ids=ids)[0]
    assert set(first[0].tolist()) == ({9} if sampling.before else {9, 7})
    assert second[0][second[1].argmax()] == 8
    ((tokens, _),), _ = draft_distributions(torch.zeros(1, 12), sampling, drafts=2, vocabulary=3)
    assert set(tokens.tolist()) <= {0, 1, 2}


# What makes no distribution

ANSWERS = {  # those that test_faults.py of generation has not
    "nothing": lambda scores: None,
    "another height": lambda scores: scores.repeat(2, 1),
    "no batch": lambda scores: scores[0],
    "truth values": lambda scores: scores > 0,
    "complex": lambda scores: scores.to(torch.complex64),
    "sparse": lambda scores: scores.to_sparse(),
    "meta": lambda scores: scores.to("meta"),
    "one nan": lambda scores: scores.index_fill(1, torch.tensor([2]), NAN),
    "both infinities": lambda scores: (scores - INF).index_fill(1, torch.tensor([3]), INF),
    "all forbidden": lambda scores: scores - INF,
    "an exception after writing": lambda scores: scores.fill_(NAN).view(3, 5, 7),
}
FINE = {"double": lambda scores: scores.double(), "half": lambda scores: scores.half()}
PREFIXES = [torch.tensor([row, 5, 6]) for row in range(3)]


class OnlyAt(LogitsProcessor):
    """Gives a wrong answer where the sequence begins with a certain row's number."""

    def __init__(self, row: int, answer):
        self.row, self.answer = row, answer

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        mine = input_ids[:, :1] == self.row
        if not mine.any():
            return scores
        answer = self.answer(scores.clone())
        same = isinstance(answer, Tensor) and answer.shape == scores.shape and answer.is_floating_point()
        return torch.where(mine, answer, scores.to(answer)) if same and answer.layout == torch.strided else answer


def logits(size: int = SIZE) -> Tensor:
    return torch.randn(3, size, generator=torch.Generator().manual_seed(5))


def listed(*processors: LogitsProcessor) -> Processors:
    return Processors(processors)


def compare(scores: Tensor, settings: list[Sampling], row: int) -> RowFault:
    """The fault of one row, after its neighbours' laws have been compared with what they have alone."""
    targets = roots(scores, settings, prefixes=PREFIXES)
    laws = [target.probabilities for target in targets.at([(0, 0), (1, 0), (2, 0)])]
    assert list(targets.faults) == [row]
    for other in {0, 1, 2} - {row}:
        alone, none = target_distributions(scores[other : other + 1], settings[other], [PREFIXES[other]])
        assert none == {}
        assert torch.equal(laws[other], alone[0])
    assert laws[row].sum() == pytest.approx(1)  # so that a batch can be computed on
    return targets.faults[row]


@pytest.mark.parametrize("spoilt", [NAN, -INF])
def test_a_model_s_scores_end_their_own_row_however_cold(spoilt):
    scores, sampling = logits(), Sampling(0.001)
    scores[1] = spoilt
    fault = compare(scores, [sampling] * 3, 1)
    assert str(fault).startswith("row 1, position 3: the target model ")
    laws, faults = draft_distributions(scores, sampling, drafts=2, vocabulary=SIZE)
    assert [(line, fault.source) for line, fault in faults.items()] == [(1, "the draft model")]
    assert all(float(law.sum()) == pytest.approx(1) for _, law in laws)


def test_two_wrong_rows_leave_no_trace_on_the_one_between():
    scores = logits()
    scores[0], scores[2] = NAN, -INF
    laws, faults = target_distributions(scores, Sampling(0.7))
    assert sorted(faults) == [0, 2]
    assert torch.equal(laws[1], target_distributions(scores[1:2], Sampling(0.7))[0][0])


@pytest.mark.parametrize(("place", "shared", "row"), [("before", True, 0), ("after", True, 1), ("before", False, 2)])
@pytest.mark.parametrize("kind", ANSWERS)
def test_a_processor_s_answer_ends_its_own_row(kind, row, shared, place):
    """Whether all rows have the processor in common, or that row alone; other processors run beside it."""
    wrong = listed(RepetitionPenaltyLogitsProcessor(1.2), OnlyAt(row, ANSWERS[kind]), MinPLogitsWarper(0.01))
    sampling = Sampling(**{place: wrong})
    scores = logits()
    settings = [sampling if shared or other == row else Sampling(0.7) for other in range(3)]
    fault = compare(scores, settings, row)
    assert fault.source == "processor OnlyAt"
    assert torch.equal(scores, logits())  # nobody has written into the model's own
    laws, faults = draft_distributions(scores, sampling, PREFIXES, drafts=2, vocabulary=SIZE)
    assert faults == {}  # any draft law is exact: there the processor is passed over
    assert all(float(law.sum()) == pytest.approx(1) for _, law in laws)


@pytest.mark.parametrize("kind", FINE)
def test_other_precisions_are_taken(kind):
    laws, faults = target_distributions(logits(), Sampling(before=listed(OnlyAt(1, FINE[kind]))), PREFIXES)
    assert faults == {}
    assert torch.allclose(laws, target_distributions(logits(), Sampling())[0], atol=1e-3)


@pytest.mark.parametrize("penalty", [1e-300, 5e-324, 1e-45, 1e-39])
def test_penalties_that_overflow_are_named(penalty):
    settings = [Sampling(), Sampling(before=listed(RepetitionPenaltyLogitsProcessor(penalty))), Sampling()]
    assert compare(logits() + 9, settings, 1).source == "processor RepetitionPenaltyLogitsProcessor"


def test_faults_travel_between_processes():
    fault = pickle.loads(pickle.dumps(RowFault("the draft model", "gives nan", 1, 9)))
    assert (fault.source, fault.row, fault.position) == ("the draft model", 1, 9)
    assert str(fault) == "row 1, position 9: the draft model gives nan; check its weights"
