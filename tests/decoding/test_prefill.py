"""Prompts side by side are read as each would be alone, in their order; before that, compiled loops have run once."""

import pytest
import torch
from decoded import start
from tiny import tiny_model

import multidraft as md
from multidraft.decoding import batch
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig, State
from multidraft.decoding.step import step
from multidraft.decoding.tree import Tree
from multidraft.decoding.warm_up import use_once, warm_up
from multidraft.models.ensemble import SideBySide
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.sampling import drafting, gate
from multidraft.sampling.settings import Sampling
from multidraft.verification import loops
from multidraft.verification.laws import anchored
from multidraft.verification.registry import SCHEMES
from multidraft.verification.rules import lorenz_loops

LOOPS = [(gate, "softmax_by_loops"), (loops, "pick_lines"), (lorenz_loops, "lorenz")]
LOOPS += [(anchored, "draw_rows"), (drafting, "likeliest")]
ORDERS = [(20, 10), (10, 20), (9, 30, 8, 31), (400, 8, 9), (8, 400, 9)]


def alike(lengths: tuple[int, ...]) -> bool:
    """Whether prompts of these lengths get the tokens that each gets alone."""
    model = tiny_model("llama", max_position_embeddings=512).float()
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, 20, (length,), generator=generator).tolist() for length in lengths]
    settings = dict(temperature=0, max_new_tokens=6, eos_token_id=[])
    together, _ = md.generate(model, None, prompts, **settings)
    alone = [md.generate(model, None, [prompt], **settings)[0][0] for prompt in prompts]
    return [row.tolist() for row in together] == [row.tolist() for row in alone]


@pytest.mark.parametrize("lengths", ORDERS)
def test_rows_stay_in_the_order_of_their_prompts(lengths: tuple[int, ...]) -> None:
    assert alike(lengths)


def test_rows_that_join_in_another_order_than_their_caches_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(*states: State, extend=batch.extend) -> State:
        state = extend(*states)
        state.rows.reverse()
        return state

    monkeypatch.setattr(batch, "extend", swapped)
    assert not alike((10, 20))


@pytest.mark.parametrize("name", [name for name, entry in SCHEMES.items() if not entry.small])
def test_a_step_asks_for_no_loop_that_has_not_run(name: str, monkeypatch) -> None:
    called: set[str] = set()
    for module, loop_name in LOOPS:
        loop = getattr(module, loop_name)
        heard = lambda *arguments, name=loop_name, loop=loop: called.add(name) or loop(*arguments)  # noqa: E731
        monkeypatch.setattr(module, loop_name, heard)
    scheme = md.scheme(name, 2)
    use_once.cache_clear()
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
