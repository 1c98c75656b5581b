"""A batch in lanes: rows of similar lengths share a padded cache, so time and memory go with the sum of all lengths.

    lane 0   k k k k k k k k k k | p p        rows 2 and 0
             k k k k k k k k k . | p p
    lane 1   k k k | p p                      rows 1, 3 and 4
             k k k | p p
             k k . | p p

Attention runs once a lane, everything else in the model once for all rows. A lane is worth its own call of attention or
it is merged with the next one, so padding costs a row less than such a call does. Rows come as lanes of their own and
leave theirs; the other lanes stay where they are.
"""

from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from multidraft.errors import AdviceError
from multidraft.models.blocks import Storage
from multidraft.models.kv_cache import BufferLayer, TreeCache
from multidraft.models.lane_attention import in_parts

COSTS = {"cpu": 256}  # of a lane: as much as attention to so many slots
COST = 1024  # the same on other devices, where a call waits longer and slots are read faster
ROOM = 4  # a lane of copies has room for a fourth more
GAIN = 1.1  # rows are put into other lanes where that saves a tenth, because it copies them


class LanesLayer(DynamicLayer):
    """One layer of all lanes; what it returns has the lanes' own keys and values as its parts."""

    def __init__(self, layers: Sequence[BufferLayer], sizes: list[int]):
        super().__init__()
        self.layers, self.sizes, self.is_initialized = layers, sizes, True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        states = zip(self.layers, key_states.split(self.sizes), value_states.split(self.sizes), strict=True)
        keys, values = zip(*(layer.update(*each) for layer, *each in states), strict=True)
        return in_parts(key_states, keys), in_parts(value_states, values)

    def get_seq_length(self) -> int:
        return max(layer.end for layer in self.layers)


Lane = tuple[TreeCache, list[int]]  # and which rows of the batch it holds, in its order


class Lanes:
    """The caches of a batch.

    `may_split` says whether there may be several; it is asked when they would be of use. The first has this `capacity`.
    """

    def __init__(self, layers: int, capacity: int, may_split: Callable[[], bool]):
        self.may_split = may_split
        self._hold([(TreeCache(layers, capacity), [])])

    def _hold(self, lanes: list[Lane]) -> None:
        self.lanes = lanes
        self.caches, self.sizes = [cache for cache, _ in lanes], [len(rows) for _, rows in lanes]
        self.order = [row for _, rows in lanes for row in rows]
        self.in_order = self.order == sorted(self.order)
        device = self.caches[0].positions.device
        self.arranging = torch.tensor(self.order, dtype=torch.int64, device=device)
        self.restoring = self.arranging.argsort()
        layers: list[Any] = [
            LanesLayer(each, self.sizes) for each in zip(*(cache.layers for cache in self.caches), strict=True)
        ]
        self.cache = Cache(layers=layers) if len(lanes) > 1 else self.caches[0].cache

    @property
    def lengths(self) -> list[int]:
        """Kept tokens of each row of the batch."""
        found = dict(zip(self.order, (n for cache in self.caches for n in cache.lengths), strict=True))
        return [found[row] for row in range(len(found))]

    @property
    def is_fixed(self) -> bool:
        """Whether all rows are at addresses that stay."""
        return len(self.caches) == 1 and self.caches[0].storage.is_fixed

    def arranged(self, rows: Tensor) -> Tensor:
        """The rows of the batch, lane by lane."""
        return rows if self.in_order else rows[self.arranging.to(rows.device)]

    def restored(self, rows: Tensor) -> Tensor:
        """The rows as they were before they were arranged."""
        return rows if self.in_order else rows[self.restoring.to(rows.device)]

    def append(self, positions: Int[Tensor, "batch new"]) -> None:
        """Make room for new pending tokens at these positions; the forward pass that follows writes them."""
        if self.caches[0].is_new:
            self._hold([(self.caches[0], list(range(len(positions))))])
        if len(positions) != len(self.order):
            raise AdviceError(
                f"{len(positions)} rows for a cache of {len(self.order)}; rows leave by select(rows) and come by "
                "join(other)"
            )
        for cache, part in zip(self.caches, self.arranged(positions).split(self.sizes), strict=True):
            cache.append(part)

    def keep(self, chosen: Int[Tensor, "batch kept"]) -> None:
        """Append the chosen pending slots to each row (-1 at the end where a row keeps fewer) and drop the others."""
        if len(chosen) != len(self.order):
            raise AdviceError(
                f"chosen has {len(chosen)} rows, the cache {len(self.order)}; pass all -1 to keep nothing"
            )
        for cache, part in zip(self.caches, self.arranged(chosen).split(self.sizes), strict=True):
            cache.keep(part)
        self._regroup()

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Go on with these rows only, in this order; a lane that loses none stays where it is."""
        new = {row: number for number, row in enumerate(rows.tolist())}
        lanes = []
        for cache, held in self.lanes:
            left = [place for place, row in enumerate(held) if row in new]
            if len(left) < len(held):
                cache.select(torch.tensor(left, dtype=torch.int64, device=rows.device))
            lanes.append((cache, [new[held[place]] for place in left]))
        self._hold([lane for lane in lanes if lane[1]] or lanes[:1])

    def join(self, other: "Lanes") -> None:
        """Put the other batch's rows below this one's; nothing may be pending in either."""
        if any(cache.pending for cache in (*self.caches, *other.caches)):
            raise AdviceError("tokens are pending; keep some, or none, before rows join")
        count = len(self.order)
        lanes = self.lanes + [(cache, [count + row for row in rows]) for cache, rows in other.lanes]
        lanes = [lane for lane in lanes if lane[1]] or lanes[:1]
        several = len(lanes) > 1 and not self.may_split()
        capacity = max(cache.capacity for cache, _ in lanes)
        self._hold([copied(lanes, self._storage(capacity))] if several else lanes)

    def unite(self, storage: Storage) -> None:
        """Move all rows there; nothing may be pending."""
        self._hold([copied(self.lanes, storage)])

    def _storage(self, capacity: int) -> Storage:
        return Storage(len(self.caches[0].layers), capacity)

    def take(self, other: "Lanes", row: int, length: int) -> None:
        """Hold a copy of the first kept tokens of one of the other batch's rows; nothing may have been read here."""
        cache, place = next((cache, held.index(row)) for cache, held in other.lanes if row in held)
        self.caches[0].take(cache, place, length)
        self._hold([(self.caches[0], [0])])

    def _regroup(self) -> None:
        """Put rows into other lanes where that pays, unless they are to stay where they are."""
        if self.is_fixed:
            return
        cost, lengths = cost_on(self.caches[0].positions.device), self.lengths
        now = sum(cost + len(cache.lengths) * cache.base for cache in self.caches)
        if now <= GAIN * (cost + sum(lengths)) or not self.may_split():  # as good as one lane without padding
            return
        groups = grouped(lengths, cost)
        if now > GAIN * sum(cost + len(rows) * max(lengths[row] for row in rows) for rows in groups):
            self._hold([self._lane(set(rows)) for rows in groups])

    def _lane(self, rows: set[int]) -> Lane:
        """A lane of these rows: the one that there is, or one of copies with room to grow."""
        kept = next((lane for lane in self.lanes if set(lane[1]) == rows), None)
        longest = max(self.lengths[row] for row in rows)
        return kept or copied(self.lanes, self._storage(longest + longest // ROOM + 1), rows)


def cost_on(device: torch.device) -> int:
    """What a lane costs."""
    return COSTS.get(device.type, COST)


def copied(lanes: list[Lane], storage: Storage, rows: Container[int] | None = None) -> Lane:
    """One lane of copies of these rows, or of all of them."""
    places = [[i for i, row in enumerate(held) if rows is None or row in rows] for _, held in lanes]
    parts = [(cache, held, chosen) for (cache, held), chosen in zip(lanes, places, strict=True) if chosen]
    together = [held[place] for _, held, chosen in parts for place in chosen]
    return TreeCache.gathered([(cache, chosen) for cache, _, chosen in parts], storage), together


def grouped(lengths: Sequence[int], cost: int) -> list[list[int]]:
    """Rows in lanes of which each costs so much and as many slots as its padded rows have: those that cost least.

    The rows of a lane follow each other by length, so the best lanes of the shortest rows are found row after row.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    best: list[tuple[int, int]] = [(0, 0)]  # for so many rows: the least cost, and where its last lane begins
    for end, row in enumerate(order, 1):
        best.append(min((best[first][0] + cost + (end - first) * lengths[row], first) for first in range(end)))
    groups, end = [], len(order)
    while end:
        first = best[end][1]
        groups.append(order[first:end])
        end = first
    return groups
