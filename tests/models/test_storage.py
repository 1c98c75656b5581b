"""Layers of several shapes share blocks of memory, at few operations; an interruption of a pass loses nothing."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType

import pytest
import torch
from reading import chain
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from multidraft.models.huggingface import kv_cache
from multidraft.models.huggingface.kv_cache import Block, BufferLayer, Contents, Storage, TreeCache

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
    kind: type[TreeCache] = TreeCache
    cache: TreeCache = field(init=False)
    pending: list[list[int]] = field(init=False)

    def __post_init__(self):
        self.cache = self.kind(len(self.shapes), 4)
        self.pending = [[] for _ in self.rows]

    def write(self, tokens: list[list[int]]) -> None:
        """A forward pass over branches that follow the kept tokens, and chains after them."""
        self.cache.begin(len(tokens))
        above = [
            chain(len(row_pending) + len(row_tokens))[len(row_pending) :]
            for row_pending, row_tokens in zip(self.pending, tokens, strict=True)
        ]
        self.cache.append(above, False)
        width = max(map(len, tokens))
        padded = torch.tensor([row + [0] * (width - len(row)) for row in tokens])
        for number, (layer, shape) in enumerate(zip(self.cache.layers, self.shapes, strict=True)):
            if shape is not None:
                keys, values = (content(padded, number).expand(-1, 3, -1, dim) for dim in shape)
                layer.update(keys, -values)
        self.pending = [row_pending + row_tokens for row_pending, row_tokens in zip(self.pending, tokens, strict=True)]

    def commit(self, counts: list[int]) -> None:
        self.cache.commit([list(range(count)) for count in counts])
        self.rows = [row + row_pending[:n] for row, row_pending, n in zip(self.rows, self.pending, counts, strict=True)]
        self.pending = [[] for _ in self.rows]

    def gather(self, rows: list[int]) -> None:
        self.cache.gather(rows)
        self.rows, self.pending = [self.rows[row] for row in rows], [self.pending[row] for row in rows]

    def extend(self, other: "Fake", rows: list[int], length: int = 99) -> None:
        texts = [other.rows[row][:length] for row in rows]
        self.cache.extend(other.cache, min(rows, default=0), [len(text) for text in texts])
        self.rows, self.pending = self.rows + texts, self.pending + [[] for _ in rows]

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


def written(shapes: list[Shape], rows: int = 3, kind: type[TreeCache] = TreeCache) -> Fake:
    """Rows of different lengths, which have read four tokens more."""
    fake = Fake(shapes, [[] for _ in range(rows)], kind)
    fake.write([[10 * row + token for token in range(1, 5 - row % 2)] for row in range(rows)])
    fake.commit([4 - row % 2 for row in range(rows)])
    fake.write([[10 * row + token for token in range(5, 9)] for row in range(rows)])
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
    if shapes is ALIKE:  # no more memory is taken than layers are left
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
def test_a_move_on_a_cpu_is_two_operations_a_tensor_and_row(shapes: list[Shape]):
    fake = written(shapes)
    fake.cache.slots = [[2, 3]] * 3  # as if the last two tokens were the tree
    fake.pending = [row_pending[2:] for row_pending in fake.pending]
    with Operations() as operations:
        fake.commit([2] * 3)
    assert fake.holds()
    moving = {name: count for name, count in operations.count.items() if "index" in name or "copy" in name}
    assert moving == dict.fromkeys(("index_select", "copy_"), 2 * 3)  # of all kinds there are two tensors


@pytest.mark.parametrize("shapes", KINDS)
def test_rows_are_held_while_blocks_grow_and_rows_come_and_go(shapes: list[Shape]):
    fake = written(shapes)
    fake.commit([4, 1, 0])
    assert fake.holds()
    fake.write([[60, 61], [62], [64, 65]])
    fake.gather([2, 0])  # in the middle of a tree
    fake.write([[66], [67, 68]])
    fake.commit([3, 2])
    assert fake.holds()
    part = Fake(shapes, [])
    part.extend(fake, [0], 5)
    assert part.holds()
    assert memory(part) == memory(written(shapes))
    late = Fake(shapes, [])
    late.extend(fake, [0, 1])
    late.extend(part, [0])
    late.extend(part, [0])
    late.extend(fake, [])
    late.write([[70 + row + 10 * token for token in range(12)] for row in range(4)])
    late.commit([12, 0, 1, 2])
    assert late.holds()
    assert memory(late) == memory(written(shapes))
    late.gather([3, 3, 1, 0, 2])
    assert late.holds()


@pytest.mark.parametrize("shapes", KINDS)
def test_rows_that_have_read_nothing_have_their_place(shapes: list[Shape]):
    """As they come while a draft model rests: the first that leaves moves one of them."""
    fake = Fake(shapes, [[]])
    fake.write([[1, 2]])
    fake.commit([1])
    for _ in range(3):
        late = Fake(shapes, [[]])
        late.cache.begin(1)
        fake.extend(late, [0])
    fake.gather([1, 3, 0])
    assert fake.holds()
    fake.write([[3, 4], [5], [6, 7, 8]])
    fake.commit([2, 1, 2])
    assert fake.holds()


class NothingMoved(TreeCache):
    """Wrong: keys and values stay behind when a path is kept."""

    def _move(self, paths: list[list[int]], columns: range) -> None:
        pass


class UnmovedRows(Storage):
    """Wrong: when rows leave, no others take their places."""

    def gather(self, rows: list[int], end: int) -> None:
        super().gather(list(range(len(rows))), end)


class RowsStay(TreeCache):
    """A cache with such a storage."""

    def __init__(self, layers: int, capacity: int):
        super().__init__(layers, capacity)
        storage = UnmovedRows(layers, 1, capacity)
        self._hold(storage, [BufferLayer(storage) for _ in range(layers)])


@pytest.mark.parametrize("wrong", [NothingMoved, RowsStay])
def test_the_check_catches_blocks_left_as_they_were(wrong: type[TreeCache]):
    fake = written(TWO_KINDS, kind=wrong)
    fake.commit([0, 1, 0])
    assert fake.holds() == (wrong is RowsStay)
    fake.gather([2, 1])
    assert not fake.holds()


def test_memory_goes_when_three_quarters_of_the_rows_have_left():
    fake = written(ALIKE, 4)
    fake.commit([4, 4, 4, 4])
    before = [tensor.untyped_storage() for block in fake.cache.storage.blocks for tensor in block.contents.tensors]
    fake.gather([0, 3])
    assert [block.size[0] for block in fake.cache.storage.blocks] == [4, 4]
    fake.gather([1])
    assert fake.holds()
    views = [view for layer in fake.cache.layers for view in (layer.keys, layer.values, *layer.buffers)]
    held = {view.untyped_storage().data_ptr() for view in views if view is not None}
    assert len(held) == len(before)
    assert not held & {storage.data_ptr() for storage in before}


# Interruptions


class Interruption:
    """Raises KeyboardInterrupt before the n-th instruction of `kv_cache.py`."""

    def __init__(self, after: int):
        self.left = after

    def __call__(self, frame: FrameType, event: str, argument: object) -> "Interruption | None":
        if frame.f_code.co_filename != kv_cache.__file__:
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
    new_tokens = [[100 * row + token for token in range(width)] for row in range(len(fake.rows))]
    try:
        with Interruption(after):
            fake.write([row[:1] * 3 for row in new_tokens])
        return None
    except KeyboardInterrupt:
        pass
    fake.pending = [[] for _ in fake.rows]
    fake.cache.commit([[]] * len(fake.cache.lengths))
    if not fake.holds():
        return True
    try:
        fake.write(new_tokens)
        fake.commit([width] * len(fake.rows))
        fake.write([[201, 202, 203]] * len(fake.rows))
    except RuntimeError:
        return True
    fake.commit([2, 3])
    return not fake.holds()


def fresh(shapes: list[Shape]) -> Fake:
    """Two rows of which nothing has been read."""
    return Fake(shapes, [[], []])


def full(shapes: list[Shape]) -> Fake:
    """The next token but one makes blocks grow."""
    fake = fresh(shapes)
    fake.write([[1, 2, 3], [4, 5, 6]])
    fake.commit([3, 3])
    return fake


def outcomes(make: Callable[[list[Shape]], Fake], shapes: list[Shape], width: int) -> Iterator[bool]:
    """What is lost by an interruption before each instruction of a pass."""
    after = 1
    while (outcome := lost(make(shapes), after, width)) is not None:
        yield outcome
        after += 1


SMALL: list[list[Shape]] = [[(4, 4)], [(6, 2)]]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("make", "width", "shapes"), [(fresh, 7, SMALL[1]), (full, 1, SMALL[0])])
def test_an_interruption_before_any_instruction_of_a_pass_loses_nothing(make, width: int, shapes: list[Shape]):
    """Of a pass with more tokens than there is room for, and with one that makes blocks grow."""
    all_outcomes = list(outcomes(make, shapes, width))
    assert len(all_outcomes) > 200
    assert not any(all_outcomes)


@pytest.mark.usefixtures("unchecked")
def test_the_comparison_catches_memory_replaced_in_two_steps(monkeypatch):
    hold = Block._hold

    def torn(self: Block, tensors: list[Tensor]) -> None:
        if hasattr(self, "contents"):
            self.contents = Contents(tensors, self.contents.layers)
        hold(self, tensors)

    monkeypatch.setattr(Block, "_hold", torn)
    assert any(outcomes(full, SMALL[0], 1))
