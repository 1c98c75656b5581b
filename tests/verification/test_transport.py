"""Every optimal acceptance rate against the linear program over all tuples, and the minimum over all token sets."""

import inspect
import itertools
import math
import sys

import pytest
import torch
from multidraft_research.solvers.linear_program import optimal_by_linear_program
from pairs import all_pairs

from multidraft.errors import AdviceError
from multidraft.verification.laws import LAWS
from multidraft.verification.laws.anchored import anchor_count, optimal_anchored
from multidraft.verification.laws.iid import optimal_iid
from multidraft.verification.laws.without_replacement import optimal_without_replacement, some_outside
from multidraft.verification.optimum import optimal_acceptance_rate

# --- a slow twin: every law as it is told, one draw after another --------------------------------------------------


def ranked(q):
    return sorted(range(len(q)), key=lambda i: (-q[i], i))


def without(q, tokens):
    return [0.0 if i in tokens else x for i, x in enumerate(q)]


def draw(q, n, replace=False):
    """Tuples of n draws and their probabilities; -1 once nothing is left to draw."""
    if n == 0:
        return {(): 1.0}
    total, tuples = sum(q), {}
    if total <= 0:
        return {(-1,) * n: 1.0}
    for i, x in enumerate(q):
        if x > 0:
            for later, probability in draw(q if replace else without(q, {i}), n - 1, replace).items():
                tuples[(i, *later)] = x / total * probability
    return tuples


def topped_up(q, n):
    """n i.i.d. draws, then one draw without replacement for every duplicate."""
    tuples = {}
    for first, probability in draw(q, n, replace=True).items():
        for top_ups, w in draw(without(q, set(first)), n - len(set(first))).items():
            drawn = (first + top_ups + (-1,) * n)[: 2 * n]
            tuples[drawn] = tuples.get(drawn, 0.0) + probability * w
    return tuples


def anchored(q, n, anchors, top_up=False):
    first = tuple(i for i in ranked(q)[:anchors] if q[i] > 0)
    unanchored = without(q, set(first))
    drawn = topped_up(unanchored, n - anchors) if top_up else draw(unanchored, n - anchors, replace=True)
    return {first + t: w for t, w in drawn.items()}


def spechub(q):
    top, tuples = ranked(q)[0], {}
    for (i,), x in draw(q, 1).items():
        for (j,), y in draw(without(q, {top}), 1).items() if i == top else [((top,), 1.0)]:
            tuples[i, j] = x * y
    return tuples


def all_laws(q, n):
    """Every (law, settings) with n drafts, and its tuples."""
    independent = draw(q, n, replace=True)
    yield "iid", {}, independent
    yield "iid", {"draft_probability": 0.6}, {t: 0.6 * w for t, w in independent.items()} | {(-1,) * n: 0.4}
    yield "without_replacement", {}, draw(q, n)
    yield "greedy", {}, anchored(q, n, n - 1)
    yield "top", {}, {tuple(i for i in ranked(q)[:n] if q[i] > 0): 1.0}
    for m, top_up in itertools.product(range(min(n, len(q)) + 1), (False, True)):
        yield "anchored", {"anchors": m, "top_up": top_up}, anchored(q, n, m, top_up)
    if n == 2:
        yield "spechub", {}, spechub(q)


def linear_program(p, tuples):
    rows = torch.tensor(list(tuples), dtype=torch.int64)
    return optimal_by_linear_program(p, rows, torch.tensor(list(tuples.values()), dtype=torch.float64))


def best_set(p, tuples):
    """min over all token sets of P(H) + P(some draft is outside H)."""
    values = []
    for members in itertools.product([False, True], repeat=len(p)):
        hit = sum(w for t, w in tuples.items() if any(i >= 0 and not members[i] for i in t))
        values.append(hit + sum(x for x, member in zip(p, members, strict=True) if member))
    return min(values)


# --- cases -------------------------------------------------------------------------------------------------------


def t64(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


RISING = t64(0.1, 0.2, 0.3, 0.4)
EXTREME = {
    "sub-probability": (0.35 * RISING.flip(0), RISING),
    "no target": (0 * RISING, RISING),
    "almost one-hot": (RISING, t64(1.0, 1e-9, 1e-13, 1e-11)),
    "far apart": (RISING, t64(1e-60, 1.0, 1e-200, 1e-30)),
    "float32 denormal": (RISING, t64(1.0, 1e-40, 1e-40, 1e-45)),
}
CASES = {label: (p, q) for label, p, q in all_pairs()} | EXTREME
FIXED = [label for label in CASES if not label.startswith(("random", "subnormal"))]  # which counts as never drafted


def check_all_laws(p, q, n):
    for law, settings, tuples in all_laws(q.tolist(), n):
        assert sum(tuples.values()) == pytest.approx(1, abs=1e-12), "the twin itself"
        value = optimal_acceptance_rate(p, q, law, drafts=n, **settings).item()
        where = f"{law} {settings}, drafts={n}, target={p.tolist()}, draft={q.tolist()}"
        assert value == pytest.approx(best_set(p.tolist(), tuples), abs=1e-9), where
        assert value == pytest.approx(linear_program(p, tuples), abs=1e-9), where


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_adversarial_cases_meet_the_linear_program(name, n):
    p, q = CASES[name]
    check_all_laws(p, q / q.sum(), n)


@pytest.mark.parametrize("seed", range(12))
def test_random_cases_meet_the_linear_program(seed):
    p, q = CASES[f"random {seed}"]
    check_all_laws(p * (1 if seed % 2 else 0.7), q, 2 + seed % 2)


# --- without replacement -------------------------------------------------------------------------------------------


def elementary(q, n):
    return sum(math.prod(q[i] for i in chosen) for chosen in itertools.combinations(range(len(q)), n))


def outside_by_arrivals(q, n):
    tuples = draw(q, n)
    return [sum(w for t, w in tuples.items() if max(t) > k) for k in range(len(q))]


def outside_as_printed(q, n):
    """The paper's 1 - W_{n,H} / W_{n,V}: right for another law."""
    return [1 - elementary(q[: k + 1], n) / elementary(q, n) for k in range(len(q))]


def largest_miss(formula):
    """How far a formula for P(some draft is outside the prefix) is from the truth, over many small cases."""
    generator, worst = torch.Generator().manual_seed(0), 0.0
    for trial in range(40):
        n = 1 + trial % 5
        q = (torch.randn(6, generator=generator, dtype=torch.float64) * (1, 3, 10)[trial % 3]).softmax(-1)
        miss = torch.tensor(formula(q.tolist(), n)) - torch.tensor(outside_by_arrivals(q.tolist(), n))
        worst = max(worst, miss.abs().max().item())
    return worst


def test_probability_of_a_draft_outside_each_prefix():
    assert largest_miss(lambda q, n: some_outside(t64(*q)[None], n)[0].tolist()) < 1e-10


def test_the_formula_as_printed_is_caught_by_the_same_test():
    assert largest_miss(outside_as_printed) > 0.01


def test_the_numbers_of_the_correction():
    q = [0.5, 0.3, 0.2]
    inside = 1 - some_outside(t64(*q)[None], 2)[0, 1].item()
    assert inside == pytest.approx(0.3 * 0.5 / 0.7 + 0.3, abs=1e-12)
    assert (inside, 1 - outside_as_printed(q, 2)[1]) == pytest.approx((0.5143, 0.4839), abs=5e-5)


@pytest.mark.parametrize("n", [3, 4, 8, 16, 24, 25, 40])
def test_uniform_draft_is_a_hypergeometric_law(n):
    V = 50
    expected = [1 - math.comb(k + 1, n) / math.comb(V, n) for k in range(V)]
    outside = some_outside(torch.full((1, V), 1 / V, dtype=torch.float64), n)[0]
    assert outside.tolist() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("n", [3, 8, 23, 24, 25, 64])
@pytest.mark.parametrize("rare", [1e-3, 1e-14, 1e-100])
def test_likely_tokens_before_rare_ones(n, rare):
    """n - 1 equal likely tokens, then equal rare ones: exact by the order in which the two kinds arrive."""
    likely, tail = n - 1, 30
    q = torch.cat([torch.ones(likely), torch.full((tail,), rare, dtype=torch.float64)])
    ways = torch.zeros(n + 1, dtype=torch.float64)  # ways[r]: probability that r of the drafts so far are rare
    ways[0] = 1.0
    for drawn in range(n):
        r = torch.arange(n + 1, dtype=torch.float64)
        rare_left, likely_left = rare * (tail - r).clamp(min=0), (likely - (drawn - r)).clamp(min=0)
        next_rare = rare_left / (rare_left + likely_left)
        ways = ways * (1 - next_rare) + torch.cat([t64(0.0), (ways * next_rare)[:-1]])
    outside = some_outside(q[None] / q.sum(), n)[0, likely:]
    for k in (0, 10, tail - 1):  # H: all likely tokens and k + 1 rare ones
        inside = sum(ways[r].item() * math.comb(k + 1, r) / math.comb(tail, r) for r in range(1, min(n, tail) + 1))
        assert 1 - outside[k].item() == pytest.approx(inside, abs=1e-10)


@pytest.mark.parametrize("n", [2, 4])
def test_large_vocabulary(n):
    """In float32 the value of float64, which lies above that of draws that may repeat."""
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.randn(2, 65536, generator=generator) * 3).softmax(-1)
    rate = optimal_without_replacement(p, q, n)
    assert optimal_iid(p, q, n) < rate < 1
    assert float(rate) == pytest.approx(float(optimal_without_replacement(p.double(), q.double(), n)), abs=1e-5)


def test_never_below_independent_draws_nor_below_fewer_drafts():
    generator = torch.Generator().manual_seed(1)
    p, q = (torch.randn(2, 20, 300, generator=generator, dtype=torch.float64) * 2).softmax(-1)
    rates = torch.stack([optimal_without_replacement(p, q, n) for n in range(8)])
    assert (rates.diff(dim=0) >= -1e-9).all()
    assert (rates[1:] >= torch.stack([optimal_iid(p, q, n) for n in range(1, 8)]) - 1e-9).all()


def test_anchor_count_takes_tokens_that_fill_their_place():
    assert anchor_count(t64(0.1, 0.6, 0.3), 2).item() == 1  # 0.6 >= 1/2 of all, 0.3 < 1/1 of what is left
    assert anchor_count(t64(0.25, 0.25, 0.25, 0.25), 3).item() == 0
    assert anchor_count(t64(0.0, 1.0, 0.0), 3).item() == 1
    assert anchor_count(t64([0.9, 0.1], [0.5, 0.5]), 2).tolist() == [2, 2]


ONE_DRAFT = [law for law in LAWS if law != "distinct"]  # whose draft is no stack: tests/research/test_solvers.py

# --- shapes, dtypes, messages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ONE_DRAFT)
def test_batched_equals_row_by_row_in_both_precisions(law):
    p, q = (torch.randn(2, 2, 4, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 4).softmax(-1)
    q[0, 0] = torch.eye(9)[2]  # a row whose support is smaller than the drafts
    q[1, 3, 4:] = 0.0
    q = q / q.sum(-1, keepdim=True)
    varies = law != "spechub"
    drafts = torch.tensor([[1, 2, 3, 4], [5, 2, 4, 4]]) if varies else torch.full((2, 4), 2)
    batched = optimal_acceptance_rate(p, q, law, drafts=drafts if varies else 2)
    single = optimal_acceptance_rate(p.float(), q.float(), law, drafts=drafts if varies else 2)
    assert single.dtype == torch.float32
    assert torch.allclose(single.double(), batched, atol=1e-6)
    for place in itertools.product(range(2), range(4)):
        row = optimal_acceptance_rate(p[place], q[place], law, drafts=drafts[place].item())
        assert row.shape == ()
        assert row.item() == pytest.approx(batched[place].item(), abs=1e-12)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("settings", [{}, {"anchors": 2}, {"anchors": 9, "top_up": False}, {"anchors": "by row"}])
def test_anchors_beside_a_number_of_drafts_for_each_row(settings):
    """As row by row; a row without drafts accepts nothing."""
    generator = torch.Generator().manual_seed(3)
    p, q = (torch.rand(5, 6, generator=generator, dtype=torch.float64).softmax(-1) for _ in range(2))
    q[0], drafts = t64(0.9, 0.1, 0, 0, 0, 0), torch.tensor([3, 1, 4, 0, 2])
    anchors, anchors_by_row = settings.get("anchors"), torch.tensor([1, 0, 4, 0, 2])
    batched = settings | ({"anchors": anchors_by_row} if anchors == "by row" else {})
    rates = optimal_acceptance_rate(p, q, "anchored", drafts=drafts, **batched)
    for row, count in enumerate(drafts.tolist()):
        alone = settings | ({"anchors": anchors_by_row[row].item()} if anchors == "by row" else {})
        assert rates[row] == pytest.approx(
            optimal_acceptance_rate(p[row], q[row], "anchored", drafts=count, **alone).item(), abs=1e-12
        )
    with pytest.raises(AdviceError, match=r"drafts has shape \(3,\); give one number, or a tensor of shape \(5,\)"):
        inspect.unwrap(optimal_acceptance_rate)(p, q, "anchored", drafts=drafts[:3])
    for wrong in (drafts.float(), drafts - 1, drafts > 0, drafts + 0j, drafts.to("meta"), "x", 1.5, [3, 1, 4, 0, 2]):
        with pytest.raises(AdviceError, match=r"drafts (has entries|is )"):
            inspect.unwrap(optimal_acceptance_rate)(p, q, "anchored", drafts=wrong)


def test_settings_reach_their_law():
    p, q = CASES["random 4"]
    assert optimal_acceptance_rate(p, q, drafts=3, draft_probability=0.0).item() == 0
    natural = optimal_anchored(p, q, 3, anchor_count(q, 3), top_up=True)
    assert optimal_acceptance_rate(p, q, "anchored", drafts=3) == natural
    for law in set(ONE_DRAFT) - {"spechub"}:
        assert optimal_acceptance_rate(p, q, law, drafts=0) == 0, "no drafts are never accepted"


HALF, LOGITS = t64(0.5, 0.5), t64(2.0, -1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: optimal_acceptance_rate(HALF, HALF, "different", drafts=2), "choose one of iid, without_replacement"),
        (lambda: optimal_acceptance_rate(HALF, HALF, drafts=2, anchors=1), "understands none beyond drafts"),
        (lambda: optimal_acceptance_rate(HALF, LOGITS, drafts=2), "draft row 0 .* pass probabilities, not logits"),
        (lambda: optimal_acceptance_rate(LOGITS, HALF, drafts=2), "target row 0 .* pass probabilities, not logits"),
        (lambda: optimal_acceptance_rate(HALF, HALF, "spechub", drafts=3), "exactly two tokens"),
        (lambda: optimal_anchored(HALF, HALF, 2, 3, top_up=False), "more anchors"),
    ],
)
def test_messages_advise(call, message):
    with pytest.raises(AdviceError, match=message):
        call()


def test_linear_program_merges_tuples_into_sets_and_refuses_what_will_not_fit(monkeypatch):
    tuples = torch.tensor([[0, 1], [1, 0], [1, 1], [0, -1], [-1, -1]])
    assert optimal_by_linear_program(t64(0.9, 0.1), tuples, t64(0.1, 0.2, 0.4, 0.1, 0.2)) == pytest.approx(0.5)
    many = torch.combinations(torch.arange(127), 3)  # of which each set has three variables
    with pytest.raises(ValueError, match="at most 1,000,000 are accepted"):
        optimal_by_linear_program(torch.ones(127) / 127, many, torch.ones(len(many)) / len(many))
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ImportError, match=r"pip install .* '.\[transport\]'"):
        optimal_by_linear_program(t64(0.5, 0.5), torch.tensor([[0], [1]]), t64(0.5, 0.5))
