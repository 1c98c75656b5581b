"""Every function that has a compiled twin beside it: the same numbers, at every setting of the laws that use it."""

from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
from torch import Tensor

from multidraft.sampling.gate import soft_lines
from multidraft.verification import loops
from multidraft.verification.law import Law
from multidraft.verification.laws import Anchored, Greedy, Iid
from multidraft.verification.laws.anchored import draw_anchored
from multidraft.verification.outcome import Outcome
from multidraft.verification.rules.lorenz import lorenz  # every pair is known once all rules are

DRAFTS, PROBABILITIES = (1, 2, 4), (1.0, 0.6)
IID = [Iid(n, a) for n, a in product(DRAFTS, PROBABILITIES)]
ANCHORED = [
    Anchored(n, a, anchors, top_up)
    for n, a, anchors, top_up in product(DRAFTS, PROBABILITIES, (None, 0, 1, 3, 9), (True, False))
]
GREEDY = [Greedy(n, a) for n, a in product(DRAFTS, PROBABILITIES)]
EXACT = {torch.float32: 2e-6, torch.float64: 1e-12}
Way = Callable[[Law, Tensor, Tensor, Tensor], Iterator[Tensor]]  # of law, target, draft, drafted


def parts_of(outcome: Outcome) -> Iterator[Tensor]:
    yield from (outcome.accept, outcome.residual, outcome.residual_mass)
    assert torch.allclose(outcome.residual_mass, outcome.residual.sum(-1), rtol=0, atol=1e-5)


def drawn_with_anchors(law: Anchored, target: Tensor, draft: Tensor, drafted: Tensor) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(4)
    for _ in range(5):
        yield draw_anchored(draft, torch.rand(len(draft), law.width, generator=generator, dtype=torch.float64), law)


def scheduled(law: Law, target: Tensor, draft: Tensor, drafted: Tensor) -> Iterator[Tensor]:
    yield from parts_of(lorenz(target, draft, drafted, law))


def softened(law: Law, target: Tensor, draft: Tensor, drafted: Tensor) -> Iterator[Tensor]:
    yield from (soft_lines(4 * draft.float().log(), temperature)[0] for temperature in (0.05, 1.0, 4.0))


WAYS: dict[str, tuple[list, Way]] = {
    "multidraft.verification.laws.anchored.draw_anchored": (ANCHORED, drawn_with_anchors),
    "multidraft.sampling.gate.soft_lines": ([Iid(1)], softened),
    "multidraft.verification.rules.lorenz.lorenz": (IID + ANCHORED + GREEDY, scheduled),
}


def rows(size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A pair like two models', one with a sure draft token, and one cut short whose target is part of one."""
    logits = torch.randn(2, 3, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    logits[1] = 2 * logits[0] + logits[1]
    logits[1, 1, 2] += 9
    logits[1, 2, size // 2 + 1 :] = -torch.inf
    target, draft = (2 * logits).softmax(-1)
    return (target * torch.tensor([[1.0], [1.0], [0.3]])).to(dtype), draft.to(dtype)


def close(one: Tensor, other: Tensor, dtype: torch.dtype) -> bool:
    """Whether they differ by rounding alone, their own or that of what they come from."""
    return torch.allclose(one, other, rtol=0, atol=max(EXACT[dtype], EXACT.get(one.dtype, 0.0)))


@pytest.mark.skipif(not loops.HAS_NUMBA, reason="without Numba no loop is asked")
@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("size", [5, 4096])
@pytest.mark.parametrize("name", loops.PAIRS)
def test_a_compiled_twin_gives_the_same_numbers(name: str, size: int, dtype: torch.dtype, monkeypatch) -> None:
    laws, way = WAYS[name]  # a new pair needs a line there
    target, draft = rows(size, dtype)
    asked = set()
    monkeypatch.setattr(loops, "twin", lambda *pair, twin=loops.twin: asked.add(pair) or twin(*pair))
    for law in laws:
        uniform = torch.rand(3, law.numbers, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        drafted = law.draw(draft, uniform)
        ours = list(way(law, target, draft, drafted))
        with monkeypatch.context() as without:
            without.setattr(loops, "usable", lambda *_: False)
            assert law.draw(draft, uniform).equal(drafted)
            plain = list(way(law, target, draft, drafted))
        assert [part.dtype for part in ours] == [part.dtype for part in plain]
        assert all(close(*both, dtype) for both in zip(ours, plain, strict=True)), law
    assert (loops.PAIRS[name], name.rpartition(".")[2]) in asked
