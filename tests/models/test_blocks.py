"""Layers of several shapes keep their keys and values in shared blocks, whatever is done to them, at few operations."""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from multidraft.models import blocks, cache
from multidraft.models.blocks import Block, Contents
from multidraft.models.kv_cache import TreeCache

Shape = tuple[int, int] | None  # the dimensions of a layer's keys and values; None if it shares another layer's
ALIKE: list[Shape] = [(4, 4)] * 11
TWO_KINDS: list[Shape] = [(4, 4), (4, 4), (6, 6)] * 4 + [None, None]
KEYS_UNLIKE_VALUES: list[Shape] = [(6, 2)] * 3
KINDS = [ALIKE, TWO_KINDS, KEYS_UNLIKE_VALUES]


@dataclass
class Fake:
    """A cache beside the tokens that each row should hold: keys and values say which token and layer they belong to."""

    shapes: list[Shape]
    rows: list[list[int]]
    cache: TreeCache = field(init=False)
    pending: Tensor = field(init=False)

    def __post_init__(self):
        self.cache = TreeCache(len(self.shapes), 4)
        self.pending = torch.empty(len(self.rows), 0, dtype=torch.int64)

    def write(self, tokens: list[list[int]]) -> None:
        """A forward pass."""
        new = torch.tensor(tokens)
        self.cache.append(new)
        for number, (layer, shape) in enumerate(zip(self.cache.layers, self.shapes, strict=True)):
            if shape is not None:
                keys, values = (content(new, number).expand(-1, 3, -1, dim) for dim in shape)
                layer.update(keys, -values)
        self.pending = torch.cat([self.pending, new], 1)

    def keep(self, chosen: list[list[int]]) -> None:
        self.cache.keep(torch.tensor(chosen))
        for row, slots, pending in zip(self.rows, chosen, self.pending.tolist(), strict=True):
            row += [pending[slot] for slot in slots if slot >= 0]
        self.pending = self.pending[:, :0]

    def select(self, rows: list[int]) -> None:
        self.cache.select(torch.tensor(rows))
        self.rows, self.pending = [self.rows[row] for row in rows], self.pending[rows]

    def join(self, other: "Fake") -> None:
        pieces = [(fake.cache, list(range(len(fake.rows)))) for fake in (self, other)]
        storage = blocks.Storage(len(self.cache.layers), max(cache.capacity for cache, _ in pieces))
        self.cache = TreeCache.gathered(pieces, storage)
        self.rows, self.pending = self.rows + other.rows, torch.cat([self.pending, other.pending])

    def part(self, row: int, length: int) -> "Fake":
        part = Fake(self.shapes, [self.rows[row][:length]])
        part.cache.take(self.cache, row, length)
        return part

    def holds(self) -> bool:
        """Whether every layer holds the rows."""
        return all(
            torch.equal(buffer[row, :, : len(tokens)], sign * content(torch.tensor([tokens]), number)[0].expand(like))
            for number, layer in enumerate(self.cache.layers)
            for sign, buffer in zip((1, -1), layer.buffers, strict=bool(layer.buffers))
            for row, tokens in enumerate(self.rows)
            for like in [buffer[row, :, : len(tokens)].shape]
        )


def content(tokens: Tensor, number: int) -> Tensor:
    """The keys of these tokens in this layer, of one head and dimension."""
    return (tokens + 1000 * number).float()[:, None, :, None]


def fresh(shapes: list[Shape]) -> Fake:
    """Two rows of which nothing has been read."""
    fake = Fake(shapes, [[], []])
    fake.cache.append(fake.pending)
    return fake


def written(shapes: list[Shape], rows: int = 3) -> Fake:
    """Each row keeps a chain of three tokens, and has read two branches of two."""
    fake = Fake(shapes, [[] for _ in range(rows)])
    fake.write([[10 * row + token for token in range(1, 4)] for row in range(rows)])
    fake.keep([[0, 1, 2]] * rows)
    fake.write([[10 * row + token for token in range(4, 8)] for row in range(rows)])
    return fake


def memory(fake: Fake) -> list[list[int]]:
    """The layers that share each piece of memory."""
    pieces: dict[int, list[int]] = {}
    for number, layer in enumerate(fake.cache.layers):
        for buffer in layer.buffers[:1]:
            pieces.setdefault(buffer.untyped_storage().data_ptr(), []).append(number)
    return list(pieces.values())


@pytest.mark.parametrize(
    ("shapes", "shared"),
    [
        (ALIKE, [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10]]),
        (TWO_KINDS, [[0, 1, 3, 4, 6, 7, 9, 10], [2, 5, 8, 11]]),
        (KEYS_UNLIKE_VALUES, [[0, 1, 2]]),
    ],
)
def test_layers_of_the_same_shape_share_memory(shapes: list[Shape], shared: list[list[int]]):
    fake = written(shapes)
    assert memory(fake) == shared
    fake.write([[50], [51], [52]])  # grown, and still shared
    assert memory(fake) == shared
    assert [layer.buffers == () for layer in fake.cache.layers] == [shape is None for shape in shapes]
    assert fake.cache.is_filled == (None not in shapes)


def test_no_more_memory_is_taken_than_layers_are_left():
    fake = written(ALIKE)
    assert [len(block.contents.layers) for block in fake.cache.storage.blocks] == [8, 3]


class Operations(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self):
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), settings=None):
        self.count[function.overloadpacket.__name__] += 1
        return function(*arguments, **(settings or {}))


@pytest.mark.parametrize("shapes", KINDS)
@pytest.mark.parametrize("rows", [1, 3])
def test_a_move_on_a_cpu_is_two_operations_a_tensor_and_row(shapes: list[Shape], rows: int):
    fake = written(shapes, rows)
    with Operations() as operations:
        fake.keep([[2, 3]] * rows)
    assert fake.holds()
    moving = {name: count for name, count in operations.count.items() if "index" in name or "copy" in name}
    names = ("index_select", "copy_")
    assert moving == dict.fromkeys(names, 2 * rows)  # two blocks, or one of two tensors: in all kinds there are two


@pytest.mark.parametrize("shapes", KINDS)
def test_rows_are_held_while_blocks_grow_and_rows_come_and_go(shapes: list[Shape]):
    fake = written(shapes)
    fake.keep([[2, 3], [0, -1], [-1, -1]])
    assert fake.holds()
    fake.write([[60, 61], [62, 63], [64, 65]])
    fake.select([2, 0])  # in the middle of a tree
    fake.write([[66], [67]])
    fake.keep([[2, 1], [1, 2]])
    assert fake.holds()
    assert fake.part(0, 5).holds()
    assert memory(fake.part(1, 2)) == memory(written(shapes))
    late = fresh(shapes)
    for other in (fresh(shapes), fake, fresh(shapes)):  # nothing has been written in the first, nor in the last
        late.join(other)
    late.write([[70 + row + 10 * token for token in range(12)] for row in range(8)])
    late.keep([[11], [-1], [0], [1], [2], [10], [-1], [5]])
    assert late.holds()
    assert [len(row) for row in late.rows] == [1, 0, 1, 1, 6, 8, 0, 1]
    assert memory(late) == memory(written(shapes))


@pytest.mark.parametrize("wrong", ["move", "select"])
def test_the_check_catches_blocks_left_as_they_were(wrong: str, monkeypatch):
    fake = written(TWO_KINDS)
    fake.keep([[0, 1]] * 3)
    fake.write([[60, 61], [62, 63], [64, 65]])
    assert fake.holds()
    monkeypatch.setattr(Block, wrong, lambda *_: None)
    if wrong == "move":
        fake.keep([[1]] * 3)
    else:
        fake.select([2, 1])
    assert not fake.holds()


def test_rows_that_leave_take_their_memory_along():
    fake = written(ALIKE)
    before = [tensor.untyped_storage() for block in fake.cache.storage.blocks for tensor in block.contents.tensors]
    fake.select([1])
    views = [view for layer in fake.cache.layers for view in (layer.keys, layer.values, *layer.buffers)]
    held = {view.untyped_storage().data_ptr() for view in views if view is not None}
    assert len(held) == len(before)
    assert not held & {storage.data_ptr() for storage in before}


# Interruptions


class Interruption:
    """Raises KeyboardInterrupt before the n-th instruction of `blocks.py` and `cache.py`."""

    def __init__(self, after: int):
        self.left = after

    def __call__(self, frame: FrameType, event: str, argument: object) -> "Interruption | None":
        if frame.f_code.co_filename not in (blocks.__file__, cache.__file__):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self

    def __enter__(self) -> None:
        sys.settrace(self)

    def __exit__(self, *_) -> None:
        sys.settrace(None)


def lost(fake: Fake, after: int, width: int) -> bool | None:
    """Whether a pass that is interrupted and dropped does harm, then or after a pass of another width.

    None if it was not interrupted.
    """
    new = [[100 * row + token for token in range(width)] for row in range(len(fake.rows))]
    try:
        with Interruption(after):
            fake.write([row[:1] * 3 for row in new])
        return None
    except KeyboardInterrupt:
        pass
    fake.pending = fake.pending[:, :0]
    fake.cache.keep(torch.full((len(fake.rows), 0), -1))
    if not fake.holds():
        return True
    try:
        fake.write(new)
        fake.keep([[width - 1]] * len(fake.rows))
        fake.write([[201, 202, 203]] * len(fake.rows))
    except RuntimeError:
        return True
    fake.keep([[2, 1]] * len(fake.rows))
    return not fake.holds()


def full(shapes: list[Shape]) -> Fake:
    """The next token but one makes blocks grow."""
    fake = fresh(shapes)
    fake.write([[1, 2, 3], [4, 5, 6]])
    fake.keep([[0, 1, 2]] * 2)
    return fake


def outcomes(make: Callable[[list[Shape]], Fake], shapes: list[Shape], width: int) -> list[bool]:
    """What is lost by an interruption before each instruction of a pass."""
    found: list[bool] = []
    while (outcome := lost(make(shapes), len(found) + 1, width)) is not None:
        found.append(outcome)
    return found


SMALL: list[list[Shape]] = [[(4, 4), (4, 4)], [(6, 2), (6, 2)]]


@pytest.mark.parametrize("shapes", SMALL)
@pytest.mark.parametrize(("make", "width"), [(fresh, 7), (full, 1)])  # more than there is room for, or less
def test_an_interruption_before_any_instruction_of_a_pass_loses_nothing(make, width: int, shapes: list[Shape]):
    found = outcomes(make, shapes, width)
    assert len(found) > 200
    assert not any(found)


def test_the_comparison_catches_memory_replaced_in_two_steps(monkeypatch):
    hold = Block._hold

    def torn(self: Block, *tensors: Tensor) -> None:
        if hasattr(self, "contents"):
            self.contents = Contents(tensors, self.contents.layers, self.contents.capacity)
        hold(self, *tensors)

    monkeypatch.setattr(Block, "_hold", torn)
    assert any(outcomes(full, SMALL[0], 1))
