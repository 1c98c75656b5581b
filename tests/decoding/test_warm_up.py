"""Before the first prompt is read, every compiled loop that a step asks for has run once."""

import time

import pytest
import torch
from decoded import start

import multidraft as md
from multidraft.decoding import warm_up as warming
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.step import step
from multidraft.decoding.tree import Tree
from multidraft.decoding.warm_up import use_all_once, use_once, warm_up
from multidraft.errors import say_once
from multidraft.models.ensemble import SideBySide
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.sampling import drafting
from multidraft.sampling.settings import Sampling
from multidraft.verification import loops
from multidraft.verification.laws import anchored
from multidraft.verification.registry import SCHEMES
from multidraft.verification.rules import lorenz_loops

LOOPS = [(loops, "softmax_lines"), (loops, "pick_lines"), (lorenz_loops, "lorenz")]
LOOPS += [(anchored, "draw_rows"), (drafting, "likeliest")]


@pytest.mark.parametrize("name", [name for name, entry in SCHEMES.items() if not entry.small])
def test_a_step_asks_for_no_loop_that_has_not_run(name: str, monkeypatch) -> None:
    called: set[str] = set()
    for module, loop_name in LOOPS:
        loop = getattr(module, loop_name)
        heard = lambda *arguments, name=loop_name, loop=loop: called.add(name) or loop(*arguments)  # noqa: E731
        monkeypatch.setattr(module, loop_name, heard)
    scheme = md.scheme(name, 2)
    use_once.cache_clear()
    use_all_once.cache_clear()
    warm_up(DecodeConfig(scheme), StaticTree(Tree.parse("2")).limits, torch.device("cpu"))
    warmed, generator = called.copy(), torch.Generator().manual_seed(0)
    called.clear()
    models = [TableModel(random_table(5, 2, seed), 5) for seed in range(3)]
    draft = SideBySide(models[1:]) if scheme.law.per_draft_distributions else models[1]
    way = DecodeConfig(scheme), StaticTree(Tree.parse("2x2"))
    state = start([[0]], models[0], draft, way, [Sampling()], 99, generator)
    for _ in range(20):
        state, _ = step(state, *way)
    assert called
    assert called <= warmed


@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_compiling_that_takes_long_says_so(seconds: float, monkeypatch, caplog) -> None:
    say_once.cache_clear()
    use_all_once.cache_clear()
    monkeypatch.setattr(warming, "SILENT_SECONDS", 0.1)
    monkeypatch.setattr(warming, "use_once", lambda scheme: time.sleep(seconds))
    warm_up(DecodeConfig(md.scheme("iid:lorenz")), StaticTree(Tree.parse("2")).limits, torch.device("cpu"))
    assert ("compiling loops" in caplog.text) == (seconds > 0)
