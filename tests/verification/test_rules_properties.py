"""Every scheme, for any shape, type and number of drafts: outcomes are laws, and bad input gets advice."""

import jaxtyping
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import multidraft as md
from multidraft.verification.registry import entries
from multidraft.verification.scheme import Scheme

NAMES = [name for name, entry in entries().items() if not entry.small]  # the others: test_solvers.py
ROUNDING = {torch.float32: 2e-5, torch.float64: 1e-12}
COMMON = settings(deadline=None, derandomize=True, max_examples=150)


@pytest.fixture(scope="module", autouse=True)
def unchecked_annotations():
    """Users run without the test run's checks of annotations, which would catch bad input before we do."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def distributions(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Rows from flat to peaked, some with zeros."""
    base, exponent, kept = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    weights = base ** (6 * exponent) * (kept > 0.25)
    weights[..., 0] += 0.05
    return (weights / weights.sum(-1, keepdim=True)).to(dtype)


@st.composite
def inputs(draw: st.DrawFn) -> tuple[Scheme, Tensor, Tensor, Tensor]:
    """A scheme with a target, a draft distribution and drafted tokens."""
    name, probability = draw(st.sampled_from(NAMES)), draw(st.sampled_from([1.0, 0.5]))
    drafts = md.scheme(name).law.fixed_drafts or draw(st.integers(1, 4))
    scheme = md.scheme(name, drafts=drafts, draft_probability=probability)
    batch = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    vocabulary, dtype = draw(st.integers(1, 7)), draw(st.sampled_from([torch.float32, torch.float64]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    drafts_shape = (drafts,) if scheme.law.per_draft_distributions else ()
    target = distributions((*batch, vocabulary), dtype, generator)
    draft = distributions((*batch, *drafts_shape, vocabulary), dtype, generator)
    return scheme, target, draft, scheme.draw(draft, generator)


@COMMON
@given(inputs(), st.sampled_from([1.0, 0.7, 1e-9, 0.0]), st.integers(0, 2**20))
def test_outcomes_are_laws_of_the_right_shape_and_type(case, total, seed):
    """With a target that sums to less, too; samples are tokens, and say where they come from."""
    scheme, target, draft, drafted = case
    outcome = scheme.outcome(total * target, draft, drafted)
    assert drafted.dtype == torch.int64
    assert outcome.accept.shape == drafted.shape == (*target.shape[:-1], scheme.law.width)
    assert outcome.residual.shape == target.shape
    assert outcome.accept.dtype == outcome.residual.dtype == target.dtype
    assert (outcome.accept >= 0).all()
    assert (outcome.residual >= 0).all()
    assert (outcome.accept[drafted < 0] == 0).all()
    mass = outcome.accept.sum(-1) + outcome.residual.sum(-1)
    assert (mass <= 1 + ROUNDING[target.dtype]).all()
    assert (outcome.law()[target == 0] == 0).all(), "a token that the target never emits"
    if total == 1:
        assert torch.allclose(mass, torch.ones_like(mass), atol=ROUNDING[target.dtype])
        token, position = outcome.sample(torch.Generator().manual_seed(seed))
        assert token.shape == position.shape == target.shape[:-1]
        assert ((token >= 0) & (token < target.shape[-1])).all()
        accepted = position >= 0
        assert torch.equal(drafted[accepted].gather(-1, position[accepted][:, None])[:, 0], token[accepted])


@COMMON
@given(inputs())
def test_acceptance_rates_are_at_most_the_optimum(case):
    scheme, target, draft, _ = case
    assume(target.dtype == torch.float64 and target.shape[-1] > 1 and target.numel() > 0)
    rate = scheme.acceptance_rate(target, draft)
    assert rate.shape == target.shape[:-1]
    assert ((rate >= -1e-12) & (rate <= 1 + 1e-12)).all()
    if not scheme.law.per_draft_distributions:
        assert (rate <= scheme.optimal_acceptance_rate(target, draft) + 1e-8).all()


def replaced(values: Tensor, index: int, by: float) -> Tensor:
    """The same with one entry replaced."""
    result = values.clone()
    result.reshape(-1)[index % values.numel()] = by
    return result


SPOILED_DISTRIBUTIONS = {
    "NaN": lambda values, i: replaced(values, i, float("nan")),
    "negative": lambda values, i: replaced(values, i, -0.25),
    "logits": lambda values, i: values * 7 + 3,
    "integers": lambda values, i: (values > 0.5).long(),
    "more tokens": lambda values, i: torch.nn.functional.pad(values, (0, 1)),
    "no tokens": lambda values, i: values[..., :0],
    "more rows": lambda values, i: torch.stack([values] * 5),
    "a number": lambda values, i: values.reshape(-1)[0],
    "nothing": lambda values, i: None,
}
SPOILED_TOKENS = {
    "beyond the vocabulary": lambda tokens, i: replaced(tokens, i, 7),
    "below -1": lambda tokens, i: replaced(tokens, i, -2),
    "too wide": lambda tokens, i: torch.cat([tokens, tokens], -1),
    "floats": lambda tokens, i: tokens.double(),
    "32 bits": lambda tokens, i: tokens.int(),
    "more rows": lambda tokens, i: torch.stack([tokens] * 5),
    "a number": lambda tokens, i: tokens.reshape(-1)[0],
    "nothing": lambda tokens, i: None,
}


@COMMON
@given(inputs(), st.sampled_from(list(SPOILED_DISTRIBUTIONS)), st.booleans(), st.integers(0, 100))
def test_bad_distributions_get_advice(case, kind, of_target, index):
    scheme, target, draft, drafted = case
    assume(target.numel() > 0)
    spoil = SPOILED_DISTRIBUTIONS[kind]
    target, draft = (spoil(target, index), draft) if of_target else (target, spoil(draft, index))
    for call in (scheme.outcome, scheme.acceptance_rate, scheme.optimal_acceptance_rate):
        with pytest.raises(md.AdviceError):
            call(target, draft, drafted) if call == scheme.outcome else call(target, draft)
    if not of_target and kind not in ("more tokens", "more rows"):  # which fit the draft alone
        for call in (scheme.draw, scheme.tuples):
            with pytest.raises(md.AdviceError):
                call(draft)


@COMMON
@given(inputs(), st.sampled_from(list(SPOILED_TOKENS)), st.integers(0, 100))
def test_bad_tokens_get_advice(case, kind, index):
    scheme, target, draft, drafted = case
    assume(drafted.numel() > 0)
    drafted = SPOILED_TOKENS[kind](drafted, index)
    for call in (lambda: scheme.outcome(target, draft, drafted), lambda: scheme.probability(draft, drafted)):
        with pytest.raises(md.AdviceError):
            call()


@COMMON
@given(inputs(), st.integers(0, 100), st.integers(0, 100))
def test_tokens_that_the_law_cannot_have_drawn_get_advice(case, index, token):
    scheme, target, draft, drafted = case
    assume(drafted.numel() > 0)
    drafted = replaced(drafted, index, token % target.shape[-1])
    if (scheme.probability(draft, drafted) > 0).all():
        scheme.outcome(target, draft, drafted)
    else:
        assume(not scheme.law.possible(draft, drafted).all())
        with pytest.raises(md.AdviceError, match="has probability 0 under the law"):
            scheme.outcome(target, draft, drafted)
