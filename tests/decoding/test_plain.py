"""The step without drafts against the step over trees that are their roots alone: token for token the same."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor

import multidraft as md
from multidraft.decoding import plain, stepping
from multidraft.decoding.drafted_tree import DraftTree
from multidraft.decoding.metrics import Info
from multidraft.decoding.prefill import begun
from multidraft.decoding.randomness import Randomness
from multidraft.decoding.shapes import Growing, Shape
from multidraft.decoding.state import Plan, State
from multidraft.decoding.step import step
from multidraft.decoding.tree import NO_DRAFTS
from multidraft.decoding.walks import WALKS
from multidraft.models.table import TableModel, random_table
from multidraft.sampling.from_processors import sampling_from
from multidraft.sampling.settings import Sampling

SIZE, STEPS, ROWS = 4096, 12, 4
BACK = sampling_from([LogitsProcessorList([RepetitionPenaltyLogitsProcessor(3.0)])] * ROWS, greedy=False)
MIN_P = sampling_from([LogitsProcessorList([MinPLogitsWarper(0.1)])] * ROWS, greedy=False)
SETTINGS = {
    "plain": [Sampling()],
    "greedy": [Sampling(0)],
    "cut": [Sampling(0.7, top_k=50, top_p=0.9)],
    "nucleus": [Sampling(1.3, top_p=0.8)],
    "looks back": [BACK],
    "filter": [MIN_P],
    "of each row": [Sampling(), Sampling(0), BACK, Sampling(0.5, top_k=9)],
}


def said(prefix: tuple[int, ...]) -> Tensor:
    """Something random that depends on the prefix."""
    generator = torch.Generator().manual_seed(sum(prefix) + SIZE * len(prefix))
    return (3 * torch.randn(SIZE, generator=generator, dtype=torch.float64)).softmax(-1)


class Saying(TableModel):
    """Logits in any precision."""

    def __init__(self, dtype: torch.dtype):
        super().__init__(said, SIZE, ROWS)
        self.dtype = dtype


def begin(dtype: torch.dtype, settings: list[Sampling]) -> State:
    """Rows of a token each."""
    random = [Randomness(torch.Generator().manual_seed(row)) for row in range(ROWS)]
    own, roots = [settings[row % len(settings)] for row in range(ROWS)], list(range(ROWS))
    prefixes = begun([[token] for token in roots], own, torch.device("cpu"))
    return State(Saying(dtype), Saying(dtype), random, roots, [0] * ROWS, [[]] * ROWS, own, prefixes)


def run(state: State, plan: Plan) -> tuple[list[Any], dict[str, Any], State]:
    """What some steps emit and report, and the state after them."""
    info, emitted = Info(), []
    for _ in range(STEPS):
        state, new = step(state, plan, info)
        emitted.append(new)
    return emitted, info.as_dict() | {"seconds": None, "tokens_per_second": None}, state


def both(monkeypatch, dtype: torch.dtype, settings: list[Sampling], plan: Plan) -> list[tuple]:
    """As it is, and over trees."""
    quick = run(begin(dtype, settings), plan)
    monkeypatch.setattr(plain, "is_looked_at", lambda *_: True)
    monkeypatch.setattr(stepping, "is_looked_at", lambda *_: True)
    return [quick, run(begin(dtype, settings), plan)]


PRECISIONS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
CASES = [(name, torch.float32, walk) for name in SETTINGS for walk in WALKS]
CASES += [(name, dtype, "deferred") for name in ("plain", "greedy", "cut") for dtype in PRECISIONS[1:]]


@pytest.mark.parametrize(("name", "dtype", "walk"), CASES)
def test_the_same_tokens_come_as_over_trees(name: str, dtype: torch.dtype, walk: str, monkeypatch) -> None:
    plan = Plan(md.scheme("anchored:lorenz"), NO_DRAFTS, walk, logprobs=2)
    (emitted, told, last), (same, also, slow) = both(monkeypatch, dtype, SETTINGS[name], plan)
    assert emitted == same
    assert told == also
    assert last.roots == slow.roots
    assert last.positions == slow.positions
    assert last.unread == slow.unread
    assert str(last.prefixes) == str(slow.prefixes)


def of_neighbours(weights: Tensor, numbers: list[float], pick_each=plain.pick_each) -> list[int]:
    return pick_each(weights, numbers[::-1])


def rounded(weights: Tensor, numbers: list[float], pick_each=plain.pick_each) -> list[int]:
    return pick_each(weights, [round(number, 2) for number in numbers])


@pytest.mark.parametrize("wrong", [of_neighbours, rounded])
def test_a_wrong_twin_is_caught(wrong, monkeypatch) -> None:
    monkeypatch.setattr(plain, "pick_each", wrong)
    quick, slow = both(monkeypatch, torch.float32, SETTINGS["plain"], Plan(md.scheme("anchored:lorenz"), NO_DRAFTS))
    assert quick[0] != slow[0]


class NoneNow(Growing):
    """May draft, and does not."""

    def reads(self, drafts: DraftTree, depth: int) -> list[list[int]]:
        return [[]] * len(drafts.trees)


def test_a_shape_that_drafts_nothing_goes_without_trees(monkeypatch) -> None:
    plan = Plan(md.scheme("anchored:lorenz"), NoneNow(2, 9), logprobs=1)
    (emitted, told, last), (same, also, slow) = both(monkeypatch, torch.float32, SETTINGS["of each row"], plan)
    assert emitted == same
    assert told == also
    assert last.unread == slow.unread


class FirstRowDrafts(Growing):
    """Two drafts in the first row, none in the others."""

    def counts(self, drafts: DraftTree, depth: int, row: int, nodes: list[int]) -> list[int]:
        return [2 * (row == 0 and depth == 0)] * len(nodes)


@pytest.mark.usefixtures("unchecked")
def test_a_row_gets_the_token_that_it_gets_beside_rows_with_drafts() -> None:
    def tokens(tree: Shape) -> list[list[int]]:
        plan, found = Plan(md.scheme("anchored:lorenz"), tree, measure=False), []
        for seed in range(5):
            target, draft = (TableModel(random_table(50, 1, s), 50, 3) for s in (seed, seed + 100))
            random = [Randomness(torch.Generator().manual_seed(seed + row)) for row in range(3)]
            state = State(target, draft, random, [1, 2, 3], [0] * 3, [[]] * 3, [Sampling()] * 3)
            found.append([new.tokens for new in step(state, plan, Info())[1]][1:])
        return found

    assert tokens(NO_DRAFTS) == tokens(FirstRowDrafts(2, 3))


def test_an_interrupted_step_can_be_taken_again(monkeypatch) -> None:
    plan, state = Plan(md.scheme("anchored:lorenz"), NO_DRAFTS), begin(torch.float32, [Sampling()])

    def interrupted(*_) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(plain, "pick_each", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step(state, plan, Info())
    step(state, plan, Info())
    with pytest.raises(md.AdviceError, match="this state has been used"):
        step(replace(state), plan, Info())
