"""The key-value buffer that a tree is written into and compacted from; nothing that it holds is ever computed twice.

A row's kept tokens fill its first slots, so a kept token's slot is its position. Pending tokens begin at the same slot,
`base`, in every row, so that a forward pass writes them with one slice. The hole between is masked:

    row 0   k k k k k k | p p p p
    row 1   k k k . . . | p p p p
                        base = the longest row's length
"""

from itertools import accumulate

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from multidraft.errors import AdviceError
from multidraft.models.blocks import Block, Storage


class BufferLayer(DynamicLayer):
    """One layer's keys and values, written in place into buffers (batch, heads, capacity, dim): views into a block."""

    def __init__(self, storage: Storage):
        super().__init__()
        self.storage, self.end = storage, 0
        self.block: Block | None = None  # found at first use; none in a layer that shares another one's buffers
        self.place = 0

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        """Keys and values."""
        return self.block.contents.layers[self.place] if self.block else ()

    @property
    def capacity(self) -> int:
        """Slots of the buffers."""
        return self.block.contents.capacity if self.block else self.storage.capacity

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.storage.capacity = max(self.storage.capacity, self.end)
        self.is_initialized = True
        # The block comes last, because it says whether there are buffers: an interruption loses nothing.
        self.place, self.block = self.storage.place(key_states, value_states)

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        start, self.end = self.end, self.end + key_states.shape[2]
        if self.block is None:
            self.lazy_initialization(key_states, value_states)
        assert self.block is not None
        if self.end > self.block.contents.capacity:
            self.block.grow(self.end)
        buffers = self.buffers
        for buffer, states in zip(buffers, (key_states, value_states), strict=True):
            buffer[:, :, start : self.end] = states
        self.keys, self.values = (buffer[:, :, : self.end] for buffer in buffers)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.end

    def gather(self, pieces: "list[tuple[BufferLayer, list[int], int]]") -> None:
        """Copy the first slots of these rows of other layers, of which any may have been written nothing yet."""
        ends = [0, *accumulate(len(rows) for _, rows, _ in pieces)]
        written = [(first, *piece) for first, piece in zip(ends, pieces, strict=False) if piece[0].block]
        if not written:
            return
        _, like, _, _ = written[0]
        self.lazy_initialization(*(b.new_empty(ends[-1], b.shape[1], 0, b.shape[3]) for b in like.buffers))
        for first, layer, rows, end in written:
            for new, buffer in zip(self.buffers, layer.buffers, strict=True):
                new[first : first + len(rows), :, :end] = buffer[rows, :, :end]


class TreeCache:
    """The layers of one model, and what they share: which slots are kept, which are pending, and who sees what.

    `cache` is what the model's forward pass takes as `past_key_values`. Give the right `capacity` (the longest sequence
    plus one tree) to avoid growing, which copies.
    """

    def __init__(self, layers: int, capacity: int, storage: Storage | None = None):
        if capacity < 1:
            raise AdviceError(f"capacity {capacity} holds no token; pass the longest sequence plus the size of a tree")
        self.storage = storage or Storage(layers, capacity)
        self.layers = [BufferLayer(self.storage) for _ in range(layers)]
        self.cache = Cache(layers=list(self.layers))
        self.lengths: list[int] = []  # kept tokens of each row; no rows before the first append
        self.base = 0
        self.positions: Int[Tensor, "batch pending"] = torch.empty(0, 0, dtype=torch.int64)
        self.holes: Bool[Tensor, "batch base"] | None = None  # None where all rows have the same length

    @property
    def pending(self) -> int:
        """The number of pending slots, the same for every row."""
        return self.positions.shape[1]

    @property
    def is_new(self) -> bool:
        """Whether it has no rows yet."""
        return not self.lengths and not self.layers[0].is_initialized

    @property
    def is_filled(self) -> bool:
        """Whether every layer has buffers of its own, as after a first forward pass."""
        return all(layer.buffers for layer in self.layers)

    @property
    def capacity(self) -> int:
        """Slots of the buffers."""
        return self.layers[0].capacity

    @property
    def written(self) -> int:
        """Where the next forward pass begins to write."""
        return self.layers[0].end

    def advance(self, new: int) -> None:
        """Note that a forward pass has written so many tokens by itself."""
        for layer in self.layers:
            layer.end += new

    def append(self, positions: Int[Tensor, "batch new"]) -> None:
        """Make room for new pending tokens at these positions; the forward pass that follows writes them."""
        if self.is_new:
            self.lengths, self.positions = [0] * len(positions), positions[:, :0]
        self.positions = torch.cat([self.positions, positions], 1)

    def mask(
        self, visible: Bool[Tensor, "batch new pending"], dtype: torch.dtype
    ) -> Float[Tensor, "batch 1 new slots"]:
        """What the new tokens add to their attention scores: 0 where they see, the lowest number where they do not.

        Never a boolean mask: eager attention would add it to the scores, silently.
        """
        if visible.shape[0] != len(self.lengths) or visible.shape[2] != self.pending:
            raise AdviceError(
                f"visible has shape {tuple(visible.shape)}; it must be ({len(self.lengths)}, new, {self.pending}), "
                "with a column for every pending slot, the new ones included"
            )
        batch, new, pending = visible.shape
        lowest = torch.finfo(dtype).min
        mask = torch.zeros(batch, 1, new, self.base + pending, dtype=dtype, device=visible.device)
        mask[..., self.base :].masked_fill_(~visible[:, None], lowest)
        if self.holes is not None:
            mask[..., : self.base].masked_fill_(self.holes[:, None, None], lowest)
        return mask

    def windowed(self, mask: Float[Tensor, "batch 1 new slots"], window: int) -> Float[Tensor, "batch 1 new slots"]:
        """The same mask for a layer in which a token sees only the last `window` positions, its own included."""
        if mask.shape[3] <= window:  # positions are smaller than the number of slots, so nothing is out of sight
            return mask
        kept = torch.arange(self.base, device=mask.device).expand(len(mask), -1)
        distance = self.positions[:, -mask.shape[2] :, None] - torch.cat([kept, self.positions], 1)[:, None]
        return mask.masked_fill((distance >= window)[:, None], torch.finfo(mask.dtype).min)

    def keep(self, chosen: Int[Tensor, "batch kept"]) -> None:
        """Append the chosen pending slots to each row (-1 at the end where a row keeps fewer) and drop the others.

        Only slots that change place are copied; in a chain, none.
        """
        paths = [self._path(slots) for slots in chosen.tolist()]
        rows = zip(paths, self.lengths, strict=True)
        moved = [i for path, length in rows for i, slot in enumerate(path) if self.base + slot != length + i]
        if moved:
            self._move(paths, range(min(moved), max(moved) + 1))
        self.lengths = [length + len(path) for path, length in zip(paths, self.lengths, strict=True)]
        self._settle(self.positions.device)

    def _path(self, slots: list[int]) -> list[int]:
        """A row of `chosen` without its padding."""
        path = slots[: slots.index(-1)] if -1 in slots else slots
        distinct = len(set(path)) == len(path) and all(0 <= slot < self.pending for slot in path)
        if not distinct or set(slots[len(path) :]) > {-1}:
            raise AdviceError(
                f"chosen has a row {slots}; pass distinct pending slots (0 to {self.pending - 1}), then only -1"
            )
        return path

    def _move(self, paths: list[list[int]], columns: range) -> None:
        there = [[length + i for i in columns] for length in self.lengths]
        here = [  # where a path is over, a slot is copied onto itself
            [self.base + path[i] if i < len(path) else length + i for i in columns]
            for path, length in zip(paths, self.lengths, strict=True)
        ]
        source, destination = torch.tensor([here, there])
        for block in self.storage.blocks:
            block.move(source, destination)

    def _settle(self, device: torch.device) -> None:
        """Forget what is pending, and begin anew after the longest row."""
        self.base = max(self.lengths, default=0)
        self.positions = self.positions[:, :0]
        for layer in self.layers:
            layer.end = self.base
        self._mark_holes(device)

    def _mark_holes(self, device: torch.device) -> None:
        self.holes = None
        if any(length < self.base for length in self.lengths):
            self.holes = torch.arange(self.base, device=device) >= torch.tensor(self.lengths, device=device)[:, None]

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Go on with these rows only, in this order."""
        self.lengths = [self.lengths[row] for row in rows.tolist()]
        self.positions = self.positions[rows]
        for layer in self.layers:
            layer.keys = layer.values = None  # views that would keep alive what the blocks let go
        for block in self.storage.blocks:
            block.select(rows)
        if self.pending:  # they stay where they are
            self._mark_holes(rows.device)
        else:
            self._settle(rows.device)

    @classmethod
    def gathered(cls, pieces: "list[tuple[TreeCache, list[int]]]", storage: Storage) -> "TreeCache":
        """A cache of copies of these rows of others; nothing may be pending in them."""
        made = cls(storage.layers, storage.capacity, storage)
        lengths = [[cache.lengths[row] for row in rows] for cache, rows in pieces]
        for number, layer in enumerate(made.layers):
            parts = zip(pieces, lengths, strict=True)
            layer.gather([(cache.layers[number], rows, max(own, default=0)) for (cache, rows), own in parts])
        made.lengths = [length for own in lengths for length in own]
        made.positions = torch.cat([cache.positions[rows] for cache, rows in pieces])
        made._settle(made.positions.device)
        return made

    def take(self, other: "TreeCache", row: int, length: int) -> None:
        """Hold a copy of the first kept tokens of one of the other cache's rows; nothing may have been read here."""
        if self.lengths or not 0 < length <= other.lengths[row]:
            raise AdviceError(
                f"cannot take {length} tokens of row {row}; take some that it has kept, into an empty cache"
            )
        for layer, source in zip(self.layers, other.layers, strict=True):
            if source.block:
                layer.update(*(buffer[row : row + 1, :, :length] for buffer in source.buffers))
        self.lengths, self.positions = [length], other.positions[:1, :0]
        self._settle(self.positions.device)
