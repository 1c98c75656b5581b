"""Before any clock runs, every compiled loop has run once."""

import pytest
import torch

import multidraft as md
from multidraft.decoding.shapes import Fixed
from multidraft.decoding.tree import Tree
from multidraft.decoding.warming import use_once, warm_up
from multidraft.verification import loops
from multidraft.verification.levels import draw_level
from multidraft.verification.places import Drawing
from multidraft.verification.registry import SCHEMES


@pytest.mark.skipif(not loops.HAS_NUMBA, reason="without Numba there are no loops")
@pytest.mark.parametrize("name", [name for name, entry in SCHEMES.items() if not entry.small])
def test_a_step_asks_for_no_loop_that_has_not_run(name: str, monkeypatch) -> None:
    asked: set[tuple[str, str]] = set()
    monkeypatch.setattr(loops, "twin", lambda *pair, twin=loops.twin: asked.add(pair) or twin(*pair))
    scheme = md.scheme(name, 2)
    use_once.cache_clear()
    warm_up(scheme, Fixed(Tree.parse("2")), torch.device("cpu"))
    warmed, generator = asked.copy(), torch.Generator().manual_seed(0)
    asked.clear()
    target, other = torch.randn(2, 9, generator=generator).softmax(-1)
    draft = torch.stack([target, other]) if scheme.law.several else other
    for _ in range(20):
        uniform = torch.rand(1, scheme.law.numbers, generator=generator, dtype=torch.float64)
        tokens, drafted = torch.full((1, 3), -1), torch.full((1, 3, scheme.law.width), -1)
        draw_level(Drawing([0], (2,), [1]), scheme.law, draft[None, None], uniform, tokens, drafted)
        outcome = scheme.verify(target, draft, drafted[0, 0])
        assert outcome.residual.sum() >= 0
    assert asked <= warmed
