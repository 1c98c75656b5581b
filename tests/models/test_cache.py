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

from multidraft.decoding.prefill import rows_of
from multidraft.errors import AdviceError
from multidraft.models.ensemble import SideBySide
from multidraft.models.huggingface.compat import check_supported, context
from multidraft.models.huggingface.kv_cache import TreeCache
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


class EveryNodeIsSeen(TreeCache):
    """Wrong: a node sees every node before it, whether an ancestor or not."""

    def visible(self) -> Tensor:
        new = self.positions[-1].shape[1]
        return torch.ones(len(self.lengths), new, self.width).tril(self.width - new).bool()


class PositionsBySlot(TreeCache):
    """Wrong: a node's position is its slot instead of its depth."""

    def append(self, parents: list[list[int]], at_end: bool, width: int = 0) -> Tensor:
        positions = super().append(parents, at_end, width)
        return (self.base + torch.arange(positions.shape[1])).expand_as(positions)


class HolesUnmasked(TreeCache):
    """Wrong: rows see the holes between their last kept token and the first pending one."""

    def masks(self, *arguments) -> dict[str, Tensor]:
        self.holes = None
        return super().masks(*arguments)


class NothingMoved(TreeCache):
    """Wrong: keys and values stay behind when a path is kept."""

    def _move(self, paths: list[list[int]], columns: range) -> None:
        pass


class RowsStay(TreeCache):
    """Wrong: when rows leave, the first ones are those that go on."""

    def gather(self, rows: list[int]) -> None:
        lengths = [self.lengths[row] for row in rows]
        super().gather(list(range(len(rows))))
        self.lengths = lengths
        self._drop_pending()


class WindowsForgotten(TreeCache):
    """Wrong: the tree's mask replaces the window."""

    def window_mask(self, mask: Tensor, window: int) -> Tensor:
        return mask


class WindowsWiderByOne(TreeCache):
    """Wrong: a token sees one more than its window."""

    def window_mask(self, mask: Tensor, window: int) -> Tensor:
        return super().window_mask(mask, window + 1)


class FilledUpAtTheWrongSide(CausalLM):
    """Wrong: the tokens of shorter rows are not where their masks say."""

    def pad_tokens(self, tokens: list[list[int]], width: int, at_end: bool) -> Tensor:
        return super().pad_tokens(tokens, width, True)


WRONG: list[type] = [EveryNodeIsSeen, PositionsBySlot, HolesUnmasked, NothingMoved, RowsStay, FilledUpAtTheWrongSide]
WRONG_CASES = [(wrong, name) for wrong in WRONG for name in ("llama", "gpt2", "gemma3")]
WRONG_CASES += [(wrong, name) for wrong in (WindowsForgotten, WindowsWiderByOne) for name in WINDOWED]


@pytest.mark.parametrize(("wrong", "name"), WRONG_CASES)
def test_the_comparison_catches_a_wrong_twin(wrong: type, name: str):
    """Texts are read well, and what comes after is not."""
    run = session(name)
    if issubclass(wrong, CausalLM):
        run = begin_session(run.plain, wrong(run.plain, 48))
    else:
        twin = CausalLM(run.plain, 48)
        twin.cache = wrong(len(twin.cache.layers), 48)
        twin.extend(run.model)
        run.model = twin
    if wrong is NothingMoved:
        run.step()
    if wrong is RowsStay:
        run.gather([2, 1])
    trees = forest(len(run.sequences), 7, run.generator)
    assert error(run.read(trees), run.expected(trees)) > 100 * TOLERANCE


# What is moved


def changed_slots(run: Session, change: Callable[[], None]) -> set[tuple[int, int]]:
    """Where, as row and slot, keys and values are others after a change, in memory that stays where it was."""
    buffers = [buffer for layer in run.model.cache.layers for buffer in layer.buffers]
    before = [(buffer.data_ptr(), buffer.clone()) for buffer in buffers]
    change()
    after = [buffer for layer in run.model.cache.layers for buffer in layer.buffers]
    assert [buffer.data_ptr() for buffer in after] == [pointer for pointer, _ in before]
    pairs = zip(after, before, strict=True)
    is_changed = torch.stack([(new != old).any(-1).any(1) for new, (_, old) in pairs]).any(0)
    return {(row, slot) for row, slot in is_changed.nonzero().tolist()}


def test_what_is_kept_is_not_reallocated_and_no_more_is_moved_than_must_be():
    """Paths that are not in place; rows that fill the places of others; nothing where rows come."""
    run, late = session("llama", (9, 4, 7, 6)), session("llama", (3,))
    trees = Forest([[1, 2, 3, 4, 5, 6]] * 4, [[-1, 0, 1, 2, -1, 4]] * 4)
    run.read(trees)
    moved = changed_slots(run, lambda: run.commit(trees, [[4, 5], [0, 1, 2], [], []]))
    assert moved == {(0, 9), (0, 10), (1, 4), (1, 5), (1, 6)}
    moved = changed_slots(run, lambda: run.gather([0, 3, 2]))
    assert {row for row, _ in moved} == {1}
    assert max(slot for _, slot in moved) < 11
    moved = changed_slots(run, lambda: run.model.extend(late.model))
    assert moved == {(3, 0), (3, 1), (3, 2)}
    run.sequences += late.sequences
    assert run.step() < TOLERANCE
    run.gather([0])
    run.read(Forest([[1, 2, 3, 4]], [[-1, 0, 1, -1]]))
    assert not changed_slots(run, lambda: run.model.commit([[0, 1, 2]]))  # a path that is in place is not moved


def test_rows_that_go_on_from_kept_ones_get_their_room_at_once():
    """One by one their buffers would be copied a dozen times, and end with room for 18."""
    drafter = SideBySide([CausalLM(tiny_model("llama"))])
    drafter.forward([[1, 2, 3]], [[-1, 0, 1]], "none")
    drafter.commit([[0, 1, 2]])
    (model,) = drafter.drafters
    (member,) = rows_of(drafter, [drafter] * 16, [2] * 16, 8).drafters
    assert rows_of(model, [model] * 16, [2] * 16, 8).cache.storage.rows == member.cache.storage.rows == 16


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
