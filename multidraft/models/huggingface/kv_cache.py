"""The key-value buffers that a tree is written into and compacted from; nothing that they hold is ever computed twice.

A row's kept tokens fill its first slots, so a kept token's slot is its position. Pending tokens begin at the same slot,
`base`, in every row, so that a forward pass writes them with one slice. The hole between is masked:

    row 0   k k k k k k | p p p p
    row 1   k k k . . . | p p p p
                        base = the longest row's length

The rows of a batch are the first ones of the buffers. Rows that leave and come move none of the others.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from multidraft.models.huggingface.gated_delta import Nets
from multidraft.models.reader import Lists
from multidraft.transfer import upload

MAX_BLOCK_LAYERS = 8  # more would gain little, and leave more unused where layers differ in shape


class Contents(NamedTuple):
    """A block's memory: replaced all at once, so that an interruption finds either the old or the new."""

    tensors: list[Tensor]
    layers: list[tuple[Tensor, ...]]  # each layer's keys and values, as views


class Block:
    """Memory for some layers of the same kind: one tensor (buffers, rows, heads, capacity, dim), keys before values.

    One operation reaches all of them. Where a layer's keys and values have different shapes, one tensor holds the keys
    and another one the values.
    """

    def __init__(self, layers: int, rows: int, capacity: int, keys: Tensor, values: Tensor):
        self.taken, self.kind = 0, kind_of(keys, values)
        alike = self.kind[0] == self.kind[1]
        groups = [(2 * layers, keys)] if alike else [(layers, keys), (layers, values)]
        # Zeros, because a masked slot still counts, and leftover NaNs would spread.
        self._hold([like.new_zeros(count, rows, like.shape[1], capacity, like.shape[3]) for count, like in groups])

    def _hold(self, tensors: list[Tensor]) -> None:
        parts = [part for tensor in tensors for part in tensor]
        half = len(parts) // 2
        self.contents = Contents(tensors, list(zip(parts[:half], parts[half:], strict=True)))

    @property
    def size(self) -> tuple[int, int]:
        """Rows and slots that there is room for."""
        return self.contents.tensors[0].shape[1], self.contents.tensors[0].shape[3]

    def resize(self, rows: int, capacity: int) -> None:
        """Room for so many rows and slots, with what fits of the contents."""
        larger = []
        for tensor in self.contents.tensors:
            buffers, _, heads, _, dim = tensor.shape
            new, old = tensor.new_zeros(buffers, rows, heads, capacity, dim), tensor[:, :rows, :, :capacity]
            new[:, : old.shape[1], :, : old.shape[3]] = old
            larger.append(new)
        self._hold(larger)  # last, so that an interruption loses nothing

    def move(self, source: Int[Tensor, "rows moved"], destination: Int[Tensor, "rows moved"]) -> None:
        """Copy these slots of each row to those, which follow each other, in all layers; first all are read."""
        for tensor in self.contents.tensors:
            if tensor.device.type == "cpu" or len(source) == 1:  # several times faster than the general way below
                for buffers, old, new in zip(tensor.unbind(1), source, destination.tolist(), strict=False):
                    if old.tolist() != new:
                        buffers[:, :, new[0] : new[-1] + 1] = buffers.index_select(2, upload(old, tensor.device))
            else:
                rows = torch.arange(len(source), device=tensor.device)[:, None]
                source, destination = upload(source, tensor.device), upload(destination, tensor.device)
                tensor[:, rows, :, destination] = tensor[:, rows, :, source]

    def move_rows(self, moved: list[tuple[int, int]], end: int) -> None:
        """Copy the first slots of rows to other rows, as if all were read before any is written."""
        places = [place for _, place in moved]
        overwritten = any(row in places[:index] for index, (row, _) in enumerate(moved))  # else none is copied twice
        for tensor in self.contents.tensors:
            rows = [tensor[:, row, :, :end].clone() if overwritten else tensor[:, row, :, :end] for row, _ in moved]
            for place, row in zip(places, rows, strict=True):
                tensor[:, place, :, :end] = row


class Storage:
    """The blocks of all layers of a model, each made when the first of its layers is written."""

    shrink_ratio: float = 4  # blocks with so many times the rows of the batch are made smaller

    def __init__(self, layers: int, rows: int, planned: int):
        self.layers, self.rows, self.capacity, self.planned = layers, rows, 0, planned  # slots: now, and in the end
        self.blocks: list[Block] = []

    def place(self, keys: Tensor, values: Tensor) -> tuple[int, Block]:
        """Memory for a layer with such keys and values: its number in a block, and the block."""
        kind, unplaced = kind_of(keys, values), self.layers
        for block in self.blocks:
            unplaced -= block.taken
            if block.kind == kind and block.taken < len(block.contents.layers):
                break
        else:  # `unplaced` may be 0 after an interruption
            block = Block(max(min(unplaced, MAX_BLOCK_LAYERS), 1), self.rows, self.capacity, keys, values)
            self.blocks.append(block)
        block.taken += 1
        return block.taken - 1, block

    def reserve(self, rows: int, capacity: int) -> None:
        """Make room for so many rows, and some more where there is not enough, and for so many slots."""
        if rows > self.rows:
            self.rows = max(rows, self.rows + self.rows // 4)
        self.capacity = max(self.capacity, capacity)
        for block in self.blocks:
            if block.size != (self.rows, self.capacity):
                block.resize(self.rows, self.capacity)

    def grow(self, rows: int, end: int) -> None:
        """Make room up to this slot: at first no more, and once that is too little for all that is planned."""
        if end > self.capacity and self.blocks:
            end = max(end, self.planned, self.capacity + self.capacity // 4)
        self.reserve(rows, end)

    def gather(self, rows: list[int], end: int) -> None:
        """Go on with the first slots of these rows only; rows whose number changes are copied."""
        self.reserve(len(rows), 0)
        moved = [(row, place) for place, row in enumerate(rows) if row != place]
        for block in self.blocks if moved else ():
            block.move_rows(moved, end)
        if rows and self.shrink_ratio * len(rows) <= self.rows:
            self.rows = len(rows)
            self.reserve(0, 0)


class BufferLayer(DynamicLayer):
    """One layer's keys and values, written in place into buffers (rows, heads, capacity, dim): views into a block."""

    def __init__(self, storage: Storage):
        super().__init__()
        self.storage, self.end, self.place = storage, 0, 0
        self.block: Block | None = None  # found at first use; none in a layer that shares another one's buffers

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        """Keys and values of all rows that there is room for."""
        return self.block.contents.layers[self.place] if self.block else ()

    def write(self, row: int, start: int, states: Sequence[Tensor]) -> None:
        """Fill slots of the rows from this one on."""
        count, _, new, _ = states[0].shape
        rows, end = row + count, start + new
        held = self.block.size if self.block else (0, 0)
        if rows > held[0] or end > held[1]:
            self.storage.grow(rows, end)
        if self.block is None:
            self.dtype, self.device, self.is_initialized = states[0].dtype, states[0].device, True
            # The block comes last, because it says whether there are buffers: an interruption loses nothing.
            self.place, self.block = self.storage.place(*states)
        for buffer, new_states in zip(self.buffers, states, strict=True):
            buffer[row:rows, :, start:end] = new_states

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        start, self.end = self.end, self.end + key_states.shape[2]
        self.write(0, start, (key_states, value_states))
        rows, (keys, values) = key_states.shape[0], self.buffers  # `len` of a tensor takes ten times as long
        self.keys, self.values = keys[:rows, :, : self.end], values[:rows, :, : self.end]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.end


class TreeCache:
    """The layers of one model, and what they share: which slots are kept, which are pending, and who sees what.

    Its reader checks what it is given. Pending tokens have a slot behind the base; a row that brings fewer tokens than
    others leaves some slots free. `paths[row, slot, other]` says whether the other slot is on the path to this one:

        tokens  a b c d   b and c follow a, d follows c      paths  a: x . . .
        slots   0 1 2 3                                             b: x x . .
                                                                    c: x . x .
                                                                    d: x . x x

    `cache` is what the model's forward pass takes as `past_key_values`; the layers `nets` are gated delta nets. Give
    the right `capacity` (the longest sequence plus one tree) to avoid growing, which copies.
    """

    def __init__(self, layers: int, capacity: int, nets: Sequence[int] = ()):
        storage = Storage(layers - len(nets), 1, capacity)
        self.nets = Nets(nets)
        self._hold(storage, [BufferLayer(storage) for _ in range(storage.layers)])
        self.lengths: list[int] = []  # kept tokens of each row; no rows before the first append
        self._drop_pending()

    def _hold(self, storage: Storage, layers: list[BufferLayer]) -> None:
        self.storage, self.layers = storage, layers
        buffer_layers = iter(layers)
        numbers = range(len(layers) + len(self.nets.layers))
        self.cache = Cache(layers=[self.nets.layers.get(number) or next(buffer_layers) for number in numbers])

    def move(self, storage: Storage) -> None:
        """Go on in other memory, with what is pending."""
        layers, rows, end = [BufferLayer(storage) for _ in self.layers], len(self.lengths), self.base + self.width
        for new, old in zip(layers, self.layers, strict=True):
            new.write(0, 0, [buffer[:rows, :, :end] for buffer in old.buffers])
            new.end = old.end
        self._hold(storage, layers)

    def _drop_pending(self) -> None:
        """Forget what is pending, and begin anew after the longest row."""
        self.base, self.width = max(self.lengths, default=0), 0
        self.slots: list[list[int]] = [[] for _ in self.lengths]  # of each row's pending tokens, as they were read
        self.paths = np.zeros((len(self.lengths), 0, 0), bool)
        self.positions: list[Int[Tensor, "rows new"]] = []  # of the pending slots, pass by pass
        self.holes: Bool[Tensor, "rows base"] | None = None  # None where all rows have the same length
        if any(length < self.base for length in self.lengths):
            self.holes = torch.arange(self.base) >= torch.tensor(self.lengths)[:, None]
        for layer in self.layers:
            layer.end = self.base
        for net in self.nets.layers.values():
            net.drop_pending()

    def begin(self, rows: int) -> None:
        """Start with so many empty rows, if there are none."""
        if not self.lengths:
            self.lengths = [0] * rows
            self._drop_pending()

    def append(self, parents: Lists, at_end: bool, width: int = 0) -> Int[Tensor, "rows new"]:
        """Make room for new pending tokens, and return their positions; the forward pass that follows writes them.

        Rows with fewer tokens than others, or than `width`, are filled up, in front of their own where those are to be
        `at_end`.
        """
        old, new = self.width, max(width, *map(len, parents))
        self.width = old + new
        self.paths = np.pad(self.paths, ((0, 0), (0, new), (0, new)))
        self.paths[:, range(old, self.width), range(old, self.width)] = True  # what fills rows up sees itself alone
        positions = np.zeros((len(parents), new), np.int64)
        for length, paths, slots, above, places in zip(
            self.lengths, self.paths, self.slots, parents, positions, strict=True
        ):
            first = self.width - len(above) if at_end else old
            for slot, parent in enumerate(above, first):
                if parent >= 0:
                    paths[slot] |= paths[slots[parent]]
                slots.append(slot)
            read = slice(first, first + len(above))
            places[first - old : first - old + len(above)] = length + paths[read].sum(1) - 1
        self.positions.append(torch.from_numpy(positions))
        return self.positions[-1]

    def visible(self) -> Bool[Tensor, "rows new pending"]:
        """Which pending slots each slot of the last pass sees."""
        return torch.from_numpy(self.paths[:, self.width - self.positions[-1].shape[1] :])

    def masks(
        self, windows: dict[str, int | None], dtype: torch.dtype, device: torch.device
    ) -> dict[str, Float[Tensor, "rows 1 new slots"]]:
        """By type of layer what is added to the last pass's scores: 0 where a token sees, else the lowest number.

        Never a boolean mask: eager attention would add it to the scores, silently. In a layer with a window a token
        sees only so many last positions, its own included.
        """
        visible, lowest = upload(self.visible(), device), torch.finfo(dtype).min
        self.nets.seen = visible
        rows, new, width = visible.shape
        full = torch.zeros(rows, 1, new, self.base + width, dtype=dtype, device=device)
        full[..., self.base :].masked_fill_(~visible[:, None], lowest)
        if self.holes is not None:
            self.holes = upload(self.holes, device)
            full[..., : self.base].masked_fill_(self.holes[:, None, None], lowest)
        return {kind: self.window_mask(full, window) if window else full for kind, window in windows.items()}

    def window_mask(self, mask: Float[Tensor, "rows 1 new slots"], window: int) -> Float[Tensor, "rows 1 new slots"]:
        """The mask of a layer with such a window."""
        if mask.shape[3] <= window:  # positions are smaller than the number of slots, so nothing is out of sight
            return mask
        kept = torch.arange(self.base).expand(len(mask), -1)
        distance = self.positions[-1][..., None] - torch.cat([kept, *self.positions], 1)[:, None]
        return mask.masked_fill(upload(distance >= window, mask.device)[:, None], torch.finfo(mask.dtype).min)

    def commit(self, chosen: Lists) -> None:
        """Append each row's pending tokens of a path, and drop the others; only slots that change place are copied."""
        if not any(chosen):  # perhaps after an interruption, which nothing but the lengths has outlived
            return self._drop_pending()
        paths = [[slots[token] for token in path] for path, slots in zip(chosen, self.slots, strict=True)]
        rows = zip(paths, self.lengths, strict=True)
        moved = [i for path, length in rows for i, slot in enumerate(path) if self.base + slot != length + i]
        if moved:
            self._move(paths, range(min(moved), max(moved) + 1))
        if self.nets.layers:
            self.nets.commit(paths, self.width)
        self.lengths = [length + len(path) for path, length in zip(paths, self.lengths, strict=True)]
        self._drop_pending()

    def _move(self, paths: Lists, columns: range) -> None:
        new_slots = [[length + i for i in columns] for length in self.lengths]
        old_slots = [  # where a path is over, a slot is copied onto itself
            [self.base + path[i] if i < len(path) else length + i for i in columns]
            for path, length in zip(paths, self.lengths, strict=True)
        ]
        source, destination = torch.tensor([old_slots, new_slots])
        for block in self.storage.blocks:
            block.move(source, destination)

    def gather(self, rows: list[int]) -> None:
        """Go on with these rows only, in this order."""
        for layer in self.layers:
            layer.keys = layer.values = None  # views that would keep alive what the blocks let go
        self.storage.gather(rows, self.base + self.width)
        for net in self.nets.layers.values():
            net.gather(rows)
        self.lengths = [self.lengths[row] for row in rows]
        self.slots, self.paths = [self.slots[row][:] for row in rows], self.paths[rows]
        self.positions = [positions[rows] for positions in self.positions]
        if not self.width:  # what is pending stays where it is
            self._drop_pending()
        elif self.holes is not None:
            self.holes = self.holes[rows]

    def extend(self, other: "TreeCache", first: int, lengths: list[int]) -> None:
        """Put copies of the first kept tokens of another cache's rows below, from its row `first` on.

        Nothing may be pending here.
        """
        rows = slice(first, first + len(lengths))
        self.storage.reserve(len(self.lengths) + len(lengths), 0)  # also for rows that have read nothing
        for layer, source in zip(self.layers, other.layers, strict=True):
            if source.block and any(lengths):
                layer.write(len(self.lengths), 0, [buffer[rows, :, : max(lengths)] for buffer in source.buffers])
        for net, other_net in zip(self.nets.layers.values(), other.nets.layers.values(), strict=True):
            net.extend(other_net, rows, len(self.lengths))
        self.lengths = self.lengths + lengths
        self._drop_pending()


def kind_of(*states: Tensor) -> list[tuple]:
    """What the layers of a block have in common: all but the number of rows and slots."""
    return [(state.shape[1], state.shape[3], state.dtype, state.device) for state in states]
