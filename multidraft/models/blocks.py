"""Keys and values of several layers in one tensor, so that one operation reaches all of them."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor, arange

LAYERS = 8  # of a block: more would gain little, and leave more unused where layers differ in shape


class Contents(NamedTuple):
    """A block's memory: replaced all at once, so that an interruption finds either the old or the new."""

    tensors: tuple[Tensor, ...]
    layers: list[tuple[Tensor, ...]]  # each layer's keys and values, as views
    capacity: int


class Block:
    """Room for some layers of the same kind: one tensor (buffers, batch, heads, capacity, dim), keys before values.

    Where a layer's keys and values have different shapes, one tensor holds the keys and another one the values.
    """

    def __init__(self, layers: int, capacity: int, keys: Tensor, values: Tensor):
        self.taken = 0
        alike = kind(keys) == kind(values)
        groups = [(2 * layers, keys)] if alike else [(layers, keys), (layers, values)]
        self._hold(*(self.allocate(buffers, like, capacity) for buffers, like in groups))

    def _hold(self, *tensors: Tensor) -> None:
        self.contents = Contents(tensors, by_layer(tensors), tensors[0].shape[3])

    def allocate(self, buffers: int, like: Tensor, capacity: int) -> Tensor:
        """Its first memory."""
        return allocate(buffers, like, capacity)

    def suits(self, keys: Tensor, values: Tensor) -> bool:
        """Whether there is room for one more layer with such keys and values."""
        layers = self.contents.layers
        return self.taken < len(layers) and [kind(part) for part in layers[0]] == [kind(keys), kind(values)]

    def grow(self, end: int) -> None:
        """Make room for so many slots, in all layers."""
        old = self.contents
        capacity = max(end, old.capacity + old.capacity // 4)
        larger = [allocate(len(tensor), tensor[0], capacity) for tensor in old.tensors]
        for new, tensor in zip(larger, old.tensors, strict=True):
            new[..., : old.capacity, :] = tensor
        self._hold(*larger)  # last, so that an interruption loses nothing

    def move(self, source: Int[Tensor, "batch moved"], destination: Int[Tensor, "batch moved"]) -> None:
        """Copy these slots of each row to those, which follow each other, in all layers; first all are read."""
        for tensor in self.contents.tensors:
            if tensor.device.type == "cpu" or len(source) == 1:  # the same as below, several times faster
                for buffers, here, there in zip(tensor.unbind(1), source, destination.tolist(), strict=True):
                    if here.tolist() != there:
                        buffers[:, :, there[0] : there[-1] + 1] = buffers.index_select(2, here.to(tensor.device))
            else:
                rows = arange(len(source), device=tensor.device)[:, None]
                source, destination = source.to(tensor.device), destination.to(tensor.device)
                tensor[:, rows, :, destination] = tensor[:, rows, :, source]

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Go on with these rows only."""
        self._hold(*(tensor[:, rows.to(tensor.device)] for tensor in self.contents.tensors))


class Storage:
    """The blocks of all layers of a model, each made when the first of its layers is written."""

    def __init__(self, layers: int, capacity: int):
        self.layers, self.capacity = layers, capacity
        self.blocks: list[Block] = []

    @property
    def is_fixed(self) -> bool:
        """Whether it is at addresses that are to stay."""
        return False

    def place(self, keys: Tensor, values: Tensor) -> tuple[int, Block]:
        """Room for a layer with such keys and values: its number in a block, and the block."""
        block = next((block for block in self.blocks if block.suits(keys, values)), None)
        if block is None:
            left = self.layers - sum(block.taken for block in self.blocks)
            block = self.block(max(min(left, LAYERS), 1), keys, values)  # 0 left after an interruption
            self.blocks.append(block)
        block.taken += 1
        return block.taken - 1, block

    def block(self, layers: int, keys: Tensor, values: Tensor) -> Block:
        """A new one."""
        return Block(layers, self.capacity, keys, values)


def by_layer(tensors: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """Each layer's keys and values, as views."""
    parts = [part for tensor in tensors for part in tensor]
    half = len(parts) // 2
    return list(zip(parts[:half], parts[half:], strict=True))


def kind(states: Tensor) -> tuple:
    """What the layers of a block have in common: all but the number of slots."""
    batch, heads, _, dim = states.shape
    return batch, heads, dim, states.dtype, states.device


def allocate(buffers: int, like: Tensor, capacity: int) -> Tensor:
    """Buffers for such keys or values: zeros, because a masked slot still counts, and leftover NaNs would spread."""
    batch, heads, _, dim = like.shape
    return like.new_zeros(buffers, batch, heads, capacity, dim)
