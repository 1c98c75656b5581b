"""The compiled loops give what tensor operations give, at every setting of every law, and stay within their arrays."""

import os
import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import ModuleType

import jaxtyping
import oracles
import pytest
import torch
from torch import Tensor

import multidraft as md
from multidraft.sampling import from_logits
from multidraft.sampling.drafting import STEPS_PER_NAT, likeliest
from multidraft.verification import distributions, loops
from multidraft.verification.law import Law
from multidraft.verification.laws import Anchored, Greedy, Iid, anchored
from multidraft.verification.outcome import over_all_tuples
from multidraft.verification.registry import entries
from multidraft.verification.rules import lorenz_loops
from multidraft.verification.rules.lorenz import lorenz

DRAFTS, PROBABILITIES = (1, 2, 4), (1.0, 0.6)
IID = [Iid(n, a) for n, a in product(DRAFTS, PROBABILITIES)]
ANCHORED = [
    Anchored(n, a, anchors, top_up)
    for n, a, anchors, top_up in product(DRAFTS, PROBABILITIES, (None, 0, 1, 3, 9), (True, False))
]
GREEDY = [Greedy(n, a) for n, a in product(DRAFTS, PROBABILITIES)]
ROUNDING = {torch.float32: 2e-6, torch.float64: 1e-12}
Way = Callable[[Law, Tensor, Tensor, Tensor], Iterator[Tensor]]  # of law, target, draft, drafted


def scheduled(law: Law, target: Tensor, draft: Tensor, drafted: Tensor) -> Iterator[Tensor]:
    outcome = lorenz(target, draft, drafted, law)
    yield from (outcome.accept, outcome.residual)


def softened(law: Law, target: Tensor, draft: Tensor, drafted: Tensor) -> Iterator[Tensor]:
    yield from (from_logits.softmax(4 * draft.float().log(), temperature)[0] for temperature in (0.05, 1.0, 4.0))


def cut(law: Law, target: Tensor, draft: Tensor, drafted: Tensor) -> Iterator[Tensor]:
    cuts = (2, None, None), (None, 0.9, None), (3, 0.8, 0.1), (None, None, 0.2)
    yield from (from_logits.distributions(draft.float().log(), 0.7, *numbers)[0] for numbers in cuts)


def picked(law: Law, target: Tensor, draft: Tensor, drafted: Tensor) -> Iterator[Tensor]:
    for number in torch.linspace(0, 1, 30, dtype=torch.float64).tolist():
        yield torch.tensor(distributions.pick_each(torch.cat([target, draft, 0 * draft]), [number] * 9))


TWINS: dict[str, tuple[ModuleType, list, Way]] = {  # by name: where a compiled twin is, and how both are called
    "softmax_lines": (loops, [Iid(1)], softened),
    "truncated_lines": (from_logits, [Iid(1)], cut),
    "pick_lines": (loops, [Iid(1)], picked),
    "lorenz": (lorenz_loops, IID + ANCHORED + GREEDY, scheduled),
}


def rows(size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A pair like two models', one with a sure draft token, and one cut short whose target is part of one."""
    logits = torch.randn(2, 3, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    logits[1] = 2 * logits[0] + logits[1]
    logits[1, 1, 2] += 9
    logits[1, 2, size // 2 + 1 :] = -torch.inf
    target, draft = (2 * logits).softmax(-1)
    return (target * torch.tensor([[1.0], [1.0], [0.3]])).to(dtype), draft.to(dtype)


def close(values: Tensor, other: Tensor, dtype: torch.dtype) -> bool:
    """Whether they differ by rounding alone, their own or that of what they come from."""
    return torch.allclose(values, other, rtol=0, atol=max(ROUNDING[dtype], ROUNDING.get(values.dtype, 0.0)))


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("size", [5, 4096])
@pytest.mark.parametrize("name", TWINS)
def test_a_compiled_twin_gives_the_same_numbers(name: str, size: int, dtype: torch.dtype, monkeypatch) -> None:
    module, laws, way = TWINS[name]
    target, draft = rows(size, dtype)
    calls, twin = [], getattr(module, name)
    monkeypatch.setattr(module, name, lambda *arguments: calls.append(1) or twin(*arguments))
    for law in laws:
        uniform = torch.rand(3, law.num_uniforms, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        drafted = law.draw(draft, uniform)
        ours = list(way(law, target, draft, drafted))
        with monkeypatch.context() as without:
            without.setattr(loops, "usable", lambda *_: False)
            assert law.draw(draft, uniform).equal(drafted)
            plain = list(way(law, target, draft, drafted))
        assert [part.dtype for part in ours] == [part.dtype for part in plain]
        assert all(close(*pair, dtype) for pair in zip(ours, plain, strict=True)), law
    assert calls


def test_every_twin_is_compared():
    """A function that asks whether loops are usable has a line in the table."""
    sources = [file.read_text() for file in Path(md.__file__).parent.rglob("*.py")]
    assert sum(len(re.findall(r"(?<!def )\busable\(", source)) for source in sources) == len(TWINS)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("size", [5, 4096])
def test_draws_with_anchors_are_those_of_tensors(size: int, dtype: torch.dtype) -> None:
    _, draft = rows(size, dtype)
    generator = torch.Generator().manual_seed(4)
    for law in ANCHORED * 5:
        uniform = torch.rand(len(draft), law.width, generator=generator, dtype=torch.float64)
        assert law.draw_all(draft, uniform).equal(oracles.draw_anchored(draft, uniform, law)), law


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("size", [5, 4096])
def test_the_likeliest_columns_are_those_of_arrays(size: int, dtype: torch.dtype) -> None:
    _, draft = rows(size, dtype)
    scores = torch.cat([draft.log(), torch.zeros_like(draft), torch.full_like(draft[:1], torch.inf)])  # equal ones, too
    for temperature, most, tail in product((0.5, 1.0), (3, 700, 4096), (0.0, 1e-3)):
        scale = scores.numpy().dtype.type(STEPS_PER_NAT / temperature)
        for line, (places, weights) in zip(scores.numpy(), likeliest(scores, temperature, most, tail), strict=True):
            columns, expected = oracles.likeliest_of(line, scale, most, tail)
            assert places.tolist() == columns.tolist()
            assert weights == pytest.approx(expected, abs=ROUNDING[dtype])


EXACT = 1e-12


def pair(seed: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A target and a draft distribution."""
    generator = torch.Generator().manual_seed(seed)
    target, draft = (2 * torch.randn(2, size, generator=generator, dtype=torch.float64)).softmax(-1)
    return target, draft


def test_a_loop_that_forgets_a_phase_is_caught(monkeypatch):
    """The biased twin: what survives one phase is left out."""
    target, draft = pair(3, 5)
    right = lorenz_loops.phases

    def forgetful(*arguments):
        columns, *parts = right(*arguments)
        columns[3, 1] = 1.0
        return columns, *parts

    monkeypatch.setattr(lorenz_loops, "phases", forgetful)
    emitted = over_all_tuples(lorenz, Iid(3), target[None], draft[None]).emitted
    assert (emitted - target).abs().max() > 1e-3


COUPLINGS = {"lorenz", "binned_lorenz", "k_sequential", "recursive_rejection", "maximal_coupling"}


@pytest.mark.parametrize("name", [name for name in entries() if md.scheme(name).law.fixed_drafts is None])
def test_what_counts_as_a_coupling_is_one(name):
    """With one draft: accepted with min(1, p/q), and the rest in proportion to (p - q)_+; `top` and `naive` are not."""
    scheme, (target, draft) = md.scheme(name, 1), pair(5, 4)
    assert scheme.is_coupling == (name.split(":")[1] in COUPLINGS and not scheme.law.per_draft_distributions)
    assert not md.scheme(name, 2).is_coupling
    if scheme.is_coupling:
        drafted = torch.tensor([[-1, 2] if name.startswith("anchored") else [2]])
        outcome = scheme.outcome(target[None], draft[None], drafted)
        accept, over = (target / draft).clamp(max=1)[2], (target - draft).clamp(min=0)
        assert outcome.accept.sum().item() == pytest.approx(accept.item(), abs=EXACT)
        assert torch.allclose(outcome.residual[0], (1 - accept) * over / over.sum(), rtol=0, atol=EXACT)


# --- no loop is reached with shapes that it does not fit; run with bounds checking, too (Makefile) ------------------

TINY = 5e-324
both_ways = pytest.mark.usefixtures("way")


@pytest.fixture(params=["loops", "tensors"])
def way(request, monkeypatch):
    """Both ways of doing the same, without the checks of type hints, which would come first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    if request.param == "tensors":
        monkeypatch.setattr(loops, "usable", lambda *_: False)


@pytest.mark.skipif(os.environ.get("NUMBA_BOUNDSCHECK") != "1", reason="the run of the Makefile alone checks bounds")
def test_bounds_are_checked_where_the_environment_asks_for_it():
    """Otherwise that run would show nothing."""
    with pytest.raises(IndexError):
        lorenz_loops.next_target(torch.ones(3).numpy(), torch.ones(2).numpy())


@both_ways
def test_loops_need_arrays_that_fit_and_stay_within_them():
    drawn = torch.full((2, 4), -1).numpy()
    anchored.draw_lines(drawn, torch.ones(2, 9).numpy(), torch.zeros(2, 4).double().numpy(), 2, 7, False, 1e-30)
    assert drawn.tolist() == [[0, 1, -1, -1]] * 2
    law, draft, drafted = md.scheme("iid:lorenz", 2).law, torch.ones(1, 2), torch.zeros(1, 2).long()
    for rows in (0, 1, 3):
        with pytest.raises(md.AdviceError, match="draft and uniform numbers have shapes"):
            anchored.draw_rows(torch.ones(2, 4), torch.zeros(rows, 5).double(), Anchored(2))
    with pytest.raises(md.AdviceError, match="target and draft have shapes"):
        lorenz_loops.lorenz(torch.ones(1, 3), draft, drafted, law)
    with pytest.raises(md.AdviceError, match="drafted and the law's width have shapes"):
        lorenz_loops.lorenz(draft, draft, drafted.expand(3, -1), law)


@both_ways
def test_a_pick_never_leaves_the_row():
    """A subnormal total times the largest number below one is the total again."""
    uniform = torch.tensor([[0.0, 0.5, 1 - 2.0**-53, 1.0]] * 2, dtype=torch.float64)
    for total in (TINY, 2 * TINY, 2.3e-308, 1.0, 1e308):
        weights = torch.tensor([[0.0, total, 0.0], [total, 0.0, 0.0]], dtype=torch.float64)
        assert distributions.pick(weights, uniform).tolist() == [[1] * 4, [0] * 4]


@both_ways
@pytest.mark.parametrize("drafts", [1, 2, 3, 5])
@pytest.mark.parametrize("anchors", [None, 0, 1, 3, 20])
def test_anchors_fit_into_the_drafts(drafts, anchors):
    draft = torch.tensor([[0.4, 0.6, 0.0], [0.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    law = Anchored(drafts, anchors=anchors)
    drafted = law.draw(draft, torch.zeros(3, law.width).double())
    assert drafted.shape == (3, law.width)
    assert drafted[1].tolist() == [-1] * law.width  # nothing leaks from the row above
    assert drafted[:, :drafts].equal(law.deterministic_tokens(draft))
    if anchors is not None:
        assert (drafted[:, :drafts] >= 0).sum(-1).tolist() == [min(anchors, drafts, count) for count in (2, 0, 3)]


@both_ways
@pytest.mark.parametrize("anchors", [None, 0, 1, 2, 20])
@pytest.mark.parametrize("drafts", [1, 2, 4])
@pytest.mark.parametrize("top_up", [True, False])
def test_any_anchors_at_any_node_are_lossless(anchors, drafts, top_up):
    """As a tree with nodes of other numbers of drafts asks for them."""
    target, draft = pair(0, 4)
    scheme = md.scheme("anchored:lorenz", 3, anchors=anchors, top_up=top_up).with_drafts(drafts)
    summed = over_all_tuples(scheme.entry.rule, scheme.law, target[None], draft[None])
    assert torch.allclose(summed.emitted[0], target, rtol=0, atol=EXACT)
    assert float(summed.acceptance) == pytest.approx(float(scheme.acceptance_rate(target, draft)), abs=EXACT)
    assert scheme.draw(draft.expand(50, -1), torch.Generator().manual_seed(0)).shape == (50, scheme.law.width)
