"""Trees read in one pass or several, over a batch's whole life, against the plain model reading every path."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial

import pytest
import torch
import transformers
from reading import PROMPTS, TOLERANCE, Forest, Session, begin_session, drawn, error, forest, worst_error_of_life
from tiny import CASES, CONTEXT, EAGER_ONLY, WINDOWED, tiny_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from multidraft.errors import AdviceError
from multidraft.models.huggingface.compat import check_supported, context
from multidraft.models.huggingface.kv_cache import Block, TreeCache
from multidraft.models.huggingface.masks import CausalLM
from multidraft.models.reader import check_paths

ALIKE = ["llama3 rope", "yarn rope", "gemma", "olmo", "granite", "falcon many heads", "mixtral", "mistral"]
QUICK = {(name, "eager" if name in EAGER_ONLY else "sdpa") for name, _ in CASES if name not in ALIKE}
FAMILIES = [
    pytest.param(*case, marks=[] if case in QUICK | {("llama", "eager"), ("gemma3", "eager")} else pytest.mark.slow)
    for case in CASES
]


def session(name: str, prompts: tuple[int, ...] = PROMPTS, capacity: int = 48, attention: str | None = None) -> Session:
    plain = tiny_model(name, attention or ("eager" if name in EAGER_ONLY else "sdpa"))
    return begin_session(plain, CausalLM(plain, capacity), prompts)


@pytest.mark.parametrize(("name", "attention"), FAMILIES)
def test_every_family_reads_trees_as_it_reads_paths(name: str, attention: str):
    assert worst_error_of_life(partial(session, name, attention=attention)) < TOLERANCE


@pytest.mark.parametrize("name", ["llama", "mistral window"])
def test_a_buffer_that_is_too_small_grows(name: str):
    assert worst_error_of_life(partial(session, name, capacity=1)) < TOLERANCE


def test_rows_may_all_leave_and_others_come():
    run = session("llama")
    run.gather([])
    assert run.model.cache.lengths == []
    late = session("llama", (5, 3))
    run.model.extend(late.model)
    run.sequences = late.sequences
    run.gather([1, 1])  # one goes on as two
    assert run.step() < TOLERANCE


@pytest.mark.parametrize("name", ["gpt2", "opt", "llama", "dynamic rope"])
def test_nodes_beyond_the_context_do_no_harm(name: str):
    run = session(name, (CONTEXT - 2,), CONTEXT)
    chain = Forest([drawn(5, run.generator)], [[-1, 0, 1, 2, 3]])
    got = run.read(chain)
    assert got.isfinite().all()
    assert error(got[:2], run.expected(Forest([chain.tokens[0][:2]], [[-1, 0]]))) < TOLERANCE


# What the comparison catches


def every_node_is_seen(run: Session, monkeypatch) -> None:
    """Wrong: a node sees every node before it, whether an ancestor or not."""
    new = lambda self: torch.ones(len(self.lengths), self.positions[-1].shape[1], self.width).tril(  # noqa: E731
        self.width - self.positions[-1].shape[1]
    )
    monkeypatch.setattr(TreeCache, "visible", lambda self: new(self).bool())


def positions_by_slot(run: Session, monkeypatch) -> None:
    """Wrong: a node's position is its slot instead of its depth."""
    right = TreeCache.append

    def wrong(self: TreeCache, parents: list[list[int]], at_end: bool) -> Tensor:
        positions = right(self, parents, at_end)
        return (self.base + torch.arange(positions.shape[1])).expand_as(positions)

    monkeypatch.setattr(TreeCache, "append", wrong)


def holes_unmasked(run: Session, monkeypatch) -> None:
    """Wrong: rows see the holes between their last kept token and the first pending one."""
    run.model.cache.holes = None


def windows_forgotten(run: Session, monkeypatch) -> None:
    """Wrong: the tree's mask replaces the window."""
    run.model.windows = dict.fromkeys(run.model.windows)


def a_window_wider_by_one(run: Session, monkeypatch) -> None:
    """Wrong: a token sees one more than its window."""
    right = TreeCache.window_mask
    monkeypatch.setattr(TreeCache, "window_mask", lambda self, mask, window: right(self, mask, window + 1))


def nothing_moved(run: Session, monkeypatch) -> None:
    """Wrong: keys and values stay behind when a path is kept."""
    monkeypatch.setattr(Block, "move", lambda *_: None)
    run.step()


def rows_stay(run: Session, monkeypatch) -> None:
    """Wrong: when rows leave, the first ones are those that go on."""
    monkeypatch.setattr(Block, "move_rows", lambda *_: None)
    run.gather([2, 1])


def filled_up_at_the_wrong_side(run: Session, monkeypatch) -> None:
    """Wrong: the tokens of shorter rows are not where their masks say."""
    right = CausalLM.pad_tokens
    monkeypatch.setattr(CausalLM, "pad_tokens", lambda self, tokens, width, at_end: right(self, tokens, width, True))


WRONG = [every_node_is_seen, positions_by_slot, holes_unmasked, nothing_moved, rows_stay, filled_up_at_the_wrong_side]
WRONG_CASES = [(wrong, name) for wrong in WRONG for name in ("llama", "gpt2", "gemma3")]
WRONG_CASES += [(wrong, name) for wrong in (windows_forgotten, a_window_wider_by_one) for name in WINDOWED]


@pytest.mark.parametrize(("wrong", "name"), WRONG_CASES)
def test_the_comparison_catches_a_wrong_twin(wrong: Callable, name: str, monkeypatch):
    run = session(name)
    wrong(run, monkeypatch)
    trees = forest(len(run.sequences), 7, run.generator)
    assert error(run.read(trees), run.expected(trees)) > 100 * TOLERANCE


# What is moved


def test_what_is_kept_is_not_reallocated_and_no_more_is_moved_than_must_be(monkeypatch):
    """Paths that are not in place; rows that fill the places of others; nothing where rows come."""
    run, moved, rows_moved = session("llama", (9, 4, 7, 6)), [], []
    move, move_rows = Block.move, Block.move_rows
    pointers = lambda: [buffer.data_ptr() for layer in run.model.cache.layers for buffer in layer.buffers]  # noqa: E731
    monkeypatch.setattr(Block, "move", lambda self, *slots: moved.append(slots) or move(self, *slots))
    monkeypatch.setattr(Block, "move_rows", lambda self, *rows: rows_moved.append(rows) or move_rows(self, *rows))
    trees, before = Forest([[0] * 6] * 4, [[-1, 0, 1, 2, -1, 4]] * 4), pointers()
    run.read(trees)
    run.commit(trees, [[4, 5], [0, 1, 2], [], []])
    assert [(source.shape, destination.shape) for source, destination in moved] == [((4, 3), (4, 3))]  # for all layers
    run.gather([0, 3, 2])
    late = session("llama", (3,))
    run.model.extend(late.model)
    run.sequences += late.sequences
    assert rows_moved == [([(3, 1)], 11)]
    assert pointers() == before
    assert run.step() < TOLERANCE
    moved.clear()
    run.gather([0])
    run.read(Forest([[1, 2, 3, 4]], [[-1, 0, 1, -1]]))
    run.model.commit([[0, 1, 2]])  # a path that is in place is not moved
    assert not moved


def test_the_users_model_is_left_as_it_was():
    plain = tiny_model("gemma3")
    before = deepcopy((plain.config.to_dict(), plain.generation_config.to_dict(), plain.state_dict()))
    session("gemma3").step()
    assert (plain.config.to_dict(), plain.generation_config.to_dict()) == before[:2]
    assert all(torch.equal(value, before[2][key]) for key, value in plain.state_dict().items())


# What is refused


def test_settings_that_cannot_be_trusted_are_refused():
    model = AutoModelForCausalLM.from_config(deepcopy(tiny_model("llama").config))
    with pytest.raises(AdviceError, match=r"training mode.*call model.eval\(\) first"):
        check_supported(model.train())
    model.eval().config._attn_implementation = "flex_attention"
    with pytest.raises(AdviceError, match="attention flex_attention, which takes no tree mask; load it with attn"):
        check_supported(model)


def test_longrope_is_used_up_to_its_original_context_only():
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    settings = {"hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": CONTEXT, "pad_token_id": None}
    long = transformers.Phi3Config(rope_parameters=rope, original_max_position_embeddings=16, **settings)
    assert context(long) == 16
    assert context(transformers.Phi3Config(**settings)) == CONTEXT


@pytest.mark.parametrize("path", [[0, 3], [0, 0], [-1, 0], [1], [0, 1]])
def test_keep_refuses_what_is_no_path(path: list[int]):
    with pytest.raises(AdviceError, match="no path of the tree with parents"):
        check_paths([[*path, 2]], [[-1, 0, -1]])
