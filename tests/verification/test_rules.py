"""Every scheme is lossless: its law, summed over every tuple of drafts, is the target. No sampling, no seed."""

import pytest
import torch
from multidraft_research.solvers.distinct_optimum import optimum_of
from multidraft_research.solvers.linear_program import optimal_by_linear_program
from mutants import rule_of
from pairs import all_pairs, stacked_pairs
from torch import Tensor

import multidraft as md
from multidraft.auditing.pairs import drafting
from multidraft.verification.law import Law
from multidraft.verification.laws import Iid
from multidraft.verification.outcome import Outcome, over_all_tuples
from multidraft.verification.registry import entries
from multidraft.verification.rules.lorenz import lorenz

EXACT = 1e-12
NAMES = [name for name, entry in entries().items() if not entry.small]  # the others: test_solvers.py
PAIRS = all_pairs()
BATCHES = stacked_pairs()  # the same, a batch for each size of the vocabulary
FEW = 16  # rows; where there is no formula, the rates of more of them are sampled
ALWAYS_OPTIMAL = ("iid:lorenz",)
OPTIMAL = ("iid:lorenz", "top:naive", "greedy:maximal_coupling", "spechub:spechub")


def counts(name: str) -> tuple[int, ...]:
    """Numbers of drafts to test a scheme with."""
    fixed = md.scheme(name).law.fixed_drafts
    return (fixed,) if fixed else (1, 2, 3)


EVERY = [(name, drafts) for name in NAMES for drafts in counts(name)]


def law_of(rule, law: Law, target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    """The exact law of the emitted token and the acceptance rate of every pair, over every tuple: none a wrong law."""
    summed = over_all_tuples(rule, law, target, drafting(law, draft))
    accept, residual = summed.outcome.accept, summed.outcome.residual
    assert min(accept.min(), residual.min()) >= 0
    assert (accept.sum(-1) + residual.sum(-1) <= 1 + EXACT).all()
    return summed.emitted, summed.acceptance


def worst_deviation(rule, law: Law, total: float = 1.0) -> tuple[float, str]:
    """The largest difference from the target of all pairs, what is no number counting as larger still; and the pair."""
    off = torch.cat([(law_of(rule, law, total * p, q)[0] - total * p).abs().amax(-1) for _, p, q in BATCHES])
    return float(off.max()), [label for labels, *_ in BATCHES for label in labels][int(off.argmax())]


SET = [
    f"anchored:lorenz,{settings}" for settings in ("anchors=0", "anchors=1", "anchors=2,top_up=false", "top_up=false")
]


@pytest.mark.parametrize("draft_probability", [1.0, 0.6])
@pytest.mark.parametrize("total", [1.0, 0.37])
@pytest.mark.parametrize(("name", "drafts"), EVERY + [(name, 3) for name in SET])
def test_law_is_the_target(name: str, drafts: int, total: float, draft_probability: float) -> None:
    scheme = md.scheme(name, drafts=drafts, draft_probability=draft_probability)
    worst = worst_deviation(scheme.entry.rule, scheme.law, total)
    assert worst[0] < EXACT, worst


@pytest.mark.parametrize("draft_probability", [1.0, 0.6])
@pytest.mark.parametrize("name", NAMES)
def test_probabilities_of_tuples(name: str, draft_probability: float) -> None:
    """They sum to one, agree with `probability`, and the draws come out of the very same conditionals."""
    scheme = md.scheme(name, drafts=counts(name)[-1], draft_probability=draft_probability)
    for labels, _, q in BATCHES:
        q = drafting(scheme.law, q)
        row, drafted, weight = scheme.law.tuples_of_rows(q)
        sums = torch.zeros(len(q)).double().index_add_(0, row, weight)
        assert torch.allclose(sums, torch.ones_like(sums), rtol=0, atol=EXACT), labels
        assert torch.allclose(scheme.probability(q[row], drafted), weight, atol=EXACT), labels
        generator = torch.Generator().manual_seed(1)
        uniform = torch.rand(len(q), 50, scheme.law.num_uniforms, dtype=torch.float64, generator=generator)
        rows, positions = q[:, None].expand(-1, 50, *q.shape[1:]), uniform[..., : scheme.law.width]
        assert torch.equal(scheme.law.draw_all(rows, positions), Law.draw_all(scheme.law, rows, positions)), labels
        assert scheme.law.possible(rows, scheme.law.draw(rows, uniform)).all(), labels


@pytest.mark.parametrize("draft_probability", [1.0, 0.6])
@pytest.mark.parametrize(("name", "drafts"), EVERY)
def test_acceptance_rate(name: str, drafts: int, draft_probability: float) -> None:
    """The formula (or what stands in for it) is what enumeration gives, and never above the optimum of the law."""
    scheme = md.scheme(name, drafts=drafts, draft_probability=draft_probability)
    for labels, p, q in BATCHES:
        _, rate = law_of(scheme.entry.rule, scheme.law, p, q)
        q = drafting(scheme.law, q)
        parts = [scheme.acceptance_rate(*rows) for rows in zip(p.split(FEW), q.split(FEW), strict=True)]
        assert torch.allclose(torch.cat(parts), rate, rtol=0, atol=EXACT), labels
        optimum = optimum_of(p, q, scheme.law)
        assert (rate <= optimum + 1e-9).all(), labels
        if name in OPTIMAL and (draft_probability == 1 or name in ALWAYS_OPTIMAL):
            assert torch.allclose(rate, optimum, rtol=0, atol=1e-9), labels


@pytest.mark.parametrize("drafts", [1, 2, 4, 8, 64])
def test_float32_and_large_vocabularies(drafts: int) -> None:
    """In float32 at 5,000 tokens the outcome of every drawn tuple still sums to one, and is near that in float64."""
    generator = torch.Generator().manual_seed(drafts)
    logits = torch.randn(3, 5000, generator=generator) * 3
    q, p = logits.softmax(-1), (logits + torch.randn(3, 5000, generator=generator)).softmax(-1)
    for name in NAMES:
        scheme = md.scheme(name, drafts=md.scheme(name).law.fixed_drafts or drafts)
        rows = drafting(scheme.law, q)
        drafted = scheme.draw(rows, generator)
        outcome = scheme.outcome(p, rows, drafted)
        assert outcome.accept.dtype == torch.float32
        assert torch.allclose(outcome.law().sum(-1), torch.ones(3), atol=2e-5), name
        exact = scheme.verify(p.double(), rows.double(), drafted)
        assert torch.allclose(outcome.accept.double(), exact.accept, atol=1e-3), name


@pytest.mark.parametrize("name", NAMES)
def test_batches_equal_rows(name: str) -> None:
    scheme = md.scheme(name, drafts=counts(name)[-1])
    p = torch.stack([p for _, p, _ in PAIRS if len(p) == 4])
    q = torch.stack([drafting(scheme.law, q) for _, _, q in PAIRS if len(q) == 4])
    drafted = scheme.draw(q, torch.Generator().manual_seed(0))
    together = scheme.verify(p, q, drafted)
    for row in range(len(p)):
        alone = scheme.verify(p[row], q[row], drafted[row])
        assert torch.allclose(together.accept[row], alone.accept, atol=1e-14)
        assert torch.allclose(together.residual[row], alone.residual, atol=1e-14)


@pytest.mark.parametrize("drafts", [1, 2, 3])
@pytest.mark.parametrize(("name", "total"), [("iid:lorenz", 1.0), ("iid:lorenz", 0.6), ("anchored:lorenz", 1.0)])
def test_the_rule_reaches_the_linear_program(name: str, drafts: int, total: float) -> None:
    """Top-ups are not verified optimally, and left out."""
    scheme = md.scheme(name, drafts=drafts, **({"top_up": False} if name.startswith("anchored") else {}))
    for labels, p, q in BATCHES:
        _, rate = law_of(scheme.entry.rule, scheme.law, total * p, q)
        programs = [optimal_by_linear_program(t, *scheme.law.tuples(d)) for t, d in zip(total * p, q, strict=True)]
        assert rate.tolist() == pytest.approx(programs, rel=0, abs=1e-9), labels


@pytest.mark.parametrize("a", [1.0, 0.6])
def test_one_draft_is_speculative_sampling(a: float) -> None:
    """Randomised Drafting, Algorithm 2: accept with min(1, p / (a q)), else sample from (p - a q)_+, normalised."""
    scheme = md.scheme("iid:lorenz", drafts=1, draft_probability=a)
    for label, p, q in PAIRS:
        if label == "subnormal":  # a token that is drafted once in 1e310 times counts as never drafted
            continue
        drafted, _ = scheme.tuples(q)
        x, is_drafted = drafted[:, 0].clamp(min=0), drafted[:, 0] >= 0
        outcome = scheme.outcome(p.expand(len(x), -1), q.expand(len(x), -1), drafted)
        accept = torch.where(is_drafted, (p[x] / (a * q[x])).clamp(max=1), 0.0)
        assert torch.allclose(outcome.accept[:, 0], accept, atol=EXACT), label
        left = (p - a * q).clamp(min=0)
        if a < 1:
            assert torch.allclose(outcome.residual[-1], left / left.sum(), atol=EXACT), label


def test_sample_follows_the_law() -> None:
    """20,000 draws; Weissman's bound gives a false alarm of 1e-9 at a distance of 0.05 for 5 tokens."""
    p, q = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0]), torch.tensor([0.3, 0.3, 0.2, 0.1, 0.1])
    scheme, generator, draws = md.scheme("iid:lorenz", drafts=2), torch.Generator().manual_seed(0), 20_000
    rows_p, rows_q = p.expand(draws, -1), q.expand(draws, -1)
    drafted = scheme.draw(rows_q, generator)
    token, position = scheme.verify(rows_p, rows_q, drafted).sample(generator)
    distance = (torch.bincount(token, minlength=5) / draws - p).abs().sum()
    assert distance < 0.05, "false alarm once in 1e9"
    accepted = position >= 0
    assert torch.equal(drafted[accepted].gather(-1, position[accepted][:, None])[:, 0], token[accepted])
    rate = float(accepted.double().mean())
    assert abs(rate - float(scheme.acceptance_rate(p, q))) < 0.021, "six standard errors"
    token, _ = md.scheme("iid:naive", drafts=2).verify(rows_p / 2, rows_q, drafted).sample(generator)
    assert abs(float((token < 0).double().mean()) - 0.5) < 6 * 0.0036, "what is missing: six standard errors"


def one_draft_less(target: Tensor, draft: Tensor, drafted: Tensor, law: Law) -> Outcome:
    """As if the last draft had not been drawn: slower, and no more."""
    return lorenz(target, draft, torch.cat([drafted[..., :-1], torch.full_like(drafted[..., :1], -1)], -1), law)


@pytest.mark.parametrize("name", ["accepts 5 % too often", "forgets the residual", "counts duplicates twice"])
def test_the_check_catches_mutants_and_does_not_cry_wolf(name: str) -> None:
    assert worst_deviation(rule_of(name), Iid(2))[0] > 1e-3
    assert worst_deviation(one_draft_less, Iid(2))[0] < EXACT


P = [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: outcome([[2.0, -1.0]], P, [[0, 0]]), "target row 0 .* pass probabilities, not logits"),
        (lambda: outcome(P, [[0.5, 0.48]], [[0, 0]]), "draft row 0 sums to 0.98"),
        (lambda: outcome(P, [[1.0, 0.0]], [[0, 1]]), "has probability 0 under the law iid"),
        (lambda: outcome(P, P, [[0, 1, 0]]), "iid:lorenz with 2 drafts needs token ids .* of shape .1, 2."),
        (lambda: outcome(P, P, [[1, 0]], "top:naive"), "probability 0 under the law top"),  # as several codes have it
        (lambda: md.scheme("top:recursive_rejection"), "not valid for drafts of the law top; valid .*: naive"),
        (lambda: md.scheme("iid:kseqq"), "unknown scheme"),
        (lambda: md.scheme("iid:lorenz", drafts=0), "at least 1"),
        (lambda: md.scheme("iid:lorenz", anchors=2), "has no setting anchors"),
    ],
)
def test_bad_input_gets_advice(call, message: str) -> None:
    with pytest.raises(md.AdviceError, match=message):
        call()


def outcome(target: list, draft: list, drafted: list, name: str = "iid:lorenz") -> Outcome:
    return md.scheme(name, drafts=2).outcome(torch.tensor(target), torch.tensor(draft), torch.tensor(drafted))


ONE_DISTRIBUTION = [case for case in EVERY if not md.scheme(case[0]).law.per_draft_distributions]


@pytest.mark.parametrize(("name", "drafts"), ONE_DISTRIBUTION + [(name, 3) for name in SET])
def test_no_number_decides_what_is_drawn_of_one_token(name: str, drafts: int) -> None:
    law, one_token = md.scheme(name).with_drafts(drafts).law, torch.ones(1)
    drawn, nothing = torch.tensor(law.tuple_of_one_token), torch.full((law.width,), -1)
    assert law.probability(one_token, drawn) == 1
    assert law.probability(one_token, nothing) == 0
