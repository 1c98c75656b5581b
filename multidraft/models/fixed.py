"""Keys and values at addresses that stay, for steps that are replayed: with rows and slots to spare, in buckets.

A room is memory for one batch. It is kept with the model and lent to one cache after another; whoever has it, the same
layers lie at the same places.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Any
from weakref import ReferenceType, ref

import torch
from jaxtyping import Int
from torch import Tensor, from_dlpack

from multidraft.models.blocks import Block, Storage, allocate, by_layer
from multidraft.models.frames import SPARE, Frame
from multidraft.models.kv_cache import BufferLayer


class Room:
    """Memory for so many rows and slots."""

    def __init__(self, rows: int, capacity: int):
        self.rows, self.capacity = rows, capacity
        self.tensors: list[Tensor] = []  # in the order in which blocks are made
        self.frames: dict[tuple[int, int, int], Frame] = {}  # what has been recorded here, by rows, tokens and slots
        self.holder: ReferenceType[FixedStorage] | None = None

    @property
    def slots(self) -> int:
        """How many it has, over all rows."""
        return self.rows * (self.capacity + SPARE)

    @property
    def is_free(self) -> bool:
        """Whether no cache has it."""
        return self.holder is None or self.holder() is None

    def holds(self, rows: int, capacity: int) -> bool:
        """Whether it is large enough."""
        return rows <= self.rows and capacity <= self.capacity

    @cached_property
    def pool(self) -> Any:
        """The memory that recorded steps share, because they run one after another."""
        return torch.cuda.graph_pool_handle() if self.tensors[0].is_cuda else None

    def tensor(self, number: int, buffers: int, like: Tensor) -> Tensor:
        """Its tensor of that number, with nothing in it."""
        if number == len(self.tensors):
            row = like[:1].expand(self.rows, -1, -1, -1)
            self.tensors.append(allocate(buffers, row, self.capacity + SPARE))
        return self.tensors[number].zero_()


class FixedBlock(Block):
    """A block in a room, of which the first rows are in use."""

    def __init__(self, room: Room, first: int, layers: int, keys: Tensor, values: Tensor):
        self.room, self.first, self.is_fixed = room, first, True
        self.whole: list[Tensor] = []
        super().__init__(layers, room.capacity, keys, values)

    def allocate(self, buffers: int, like: Tensor, capacity: int) -> Tensor:
        """The next tensor of the room."""
        self.whole.append(self.room.tensor(self.first + len(self.whole), buffers, like))
        return self.whole[-1][:, : len(like)]

    def grow(self, end: int) -> None:
        """Move out, to where there are so many slots."""
        super().grow(end)
        self.is_fixed = False

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Go on with these rows only, which move up."""
        if not self.is_fixed:
            return super().select(rows)
        tensors = [tensor[:, : len(rows)] for tensor in self.contents.tensors]
        for first, tensor in zip(tensors, self.contents.tensors, strict=True):
            first.copy_(tensor[:, rows.to(tensor.device)])
        self._hold(*tensors)


class FixedStorage(Storage):
    """The blocks of a model in a room, and all of its memory by layer."""

    def __init__(self, layers: int, room: Room):
        super().__init__(layers, room.capacity)
        self.room = room
        room.holder = ref(self)

    def block(self, layers: int, keys: Tensor, values: Tensor) -> Block:
        taken = sum(len(block.whole) for block in self.blocks if isinstance(block, FixedBlock))
        return FixedBlock(self.room, taken, layers, keys, values)

    @property
    def is_fixed(self) -> bool:
        """Whether all is still in the room."""
        return all(isinstance(block, FixedBlock) and block.is_fixed for block in self.blocks)


def memory(layers: Iterable[BufferLayer]) -> list[Tensor]:
    """All rows and slots of the layers' keys and values.

    No two share a storage, so that a compiler need not ask whether they overlap.
    """
    blocks = [(layer.block, layer.place) for layer in layers if isinstance(layer.block, FixedBlock)]
    return [from_dlpack(buffer) for block, place in blocks for buffer in by_layer(block.whole)[place]]
