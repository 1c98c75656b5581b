"""The shape of one step's drafts: which node draws how many tokens, fixed before anything is drawn."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.places import Drawing

Path = tuple[int, ...]
MOST_NODES = 4096
FORMS = (
    "write a chain or k-config such as 4x2x2x1, every slot's drafts such as 3/2,1,0, i.i.d. paths such as "
    "'8 paths of 4', or paths [[0],[0,0],[1]] as JSON"
)


@dataclass(frozen=True)
class Tree:
    """Slots in breadth-first order, children of a slot next to each other; slot 0 is the root, the last known token.

    `parents[i]` is the slot above slot i (-1 for the root and for slots that are not used), `drafts[i]` the number of
    tokens drawn at it, which is the number of its children. Slots are places for tokens: one that stays empty, or
    repeats a sibling, costs nothing in the target's pass.
    """

    parents: tuple[int, ...]
    drafts: tuple[int, ...]

    @classmethod
    def levels(cls, counts: Sequence[int]) -> "Tree":
        """A k-config: `counts[d]` drafts at every node of depth d. All ones make a chain."""
        if not counts or min(counts) < 1:
            raise AdviceError(
                f"tree {'x'.join(map(str, counts)) or 'of no levels'} has a level without drafts; {FORMS}"
            )
        paths: list[Path] = [()]
        level: list[Path] = [()]
        for count in counts:
            if len(paths) + len(level) * count > MOST_NODES:  # before they are made
                raise too_large()
            level = [(*path, rank) for path in level for rank in range(count)]
            paths += level
        return cls.paths(paths[1:])

    @classmethod
    def paths(cls, paths: Sequence[Sequence[int]]) -> "Tree":
        """A list of paths as in EAGLE: every node by the ranks of the children leading to it, parents added."""
        if max(map(len, paths), default=0) > MOST_NODES or len(paths) > MOST_NODES:
            raise too_large()
        nodes = {tuple(path[:length]) for path in paths for length in range(len(path) + 1)} | {()}
        if len(nodes) > MOST_NODES:
            raise too_large()
        ordered = sorted(nodes, key=lambda path: (len(path), path))
        index = {path: slot for slot, path in enumerate(ordered)}
        drafts = [0] * len(ordered)
        for path in ordered[1:]:
            if path[-1] != drafts[index[path[:-1]]]:
                raise AdviceError(
                    f"tree path {list(path)} comes without its sibling {[*path[:-1], path[-1] - 1]}; add it"
                )
            drafts[index[path[:-1]]] += 1
        return cls(tuple(index[path[:-1]] if path else -1 for path in ordered), tuple(drafts))

    @classmethod
    def parse(cls, text: str) -> "Tree":
        """The tree that a string describes.

        >>> Tree.parse("2x1").parents
        (-1, 0, 0, 1, 2)
        """
        text = text.strip().lower()
        if re.fullmatch(r"\d+(x\d+)*", text):
            return cls.levels([number(count) for count in text.split("x")])
        if re.fullmatch(r"\d+(,\d+)*(/\d+(,\d+)*)+", text):
            return cls.from_drafts(drafts_of(text))
        if match := re.fullmatch(r"(\d+) paths? of ([1-9]\d*)", text):
            return cls.levels([number(match[1])] + [1] * (number(match[2]) - 1))
        try:
            listed = json.loads(text)
        except (ValueError, RecursionError):  # of JSON, of the digits that Python reads, of its depth
            listed = None
        if not is_paths(listed):
            raise AdviceError(f"tree {text!r} does not parse; {FORMS}")
        return cls.paths(listed)

    @classmethod
    def from_drafts(cls, drafts: Sequence[int]) -> "Tree":
        """The tree whose slots, in their order, draw so many tokens each.

        >>> Tree.from_drafts([2, 1, 0, 0]).parents
        (-1, 0, 0, 1)
        """
        parents = [-1, *(slot for slot, count in enumerate(drafts) for _ in range(count))]
        if len(parents) != len(drafts) or any(parent >= slot for slot, parent in enumerate(parents)):
            raise AdviceError(f"drafts {list(drafts)} make no tree; give one number for every slot")
        return cls(tuple(parents), tuple(drafts))

    @cached_property
    def name(self) -> str:
        """A k-config where it is one, else the drafts of every level's slots: `3/2,1,0/1,0,0` has three levels."""
        levels: list[list[int]] = [[] for _ in range(max(self.depths) + 1)]
        for depth, count in zip(self.depths, self.drafts, strict=True):
            levels[depth].append(count)
        if all(len(set(level)) == 1 for level in levels):
            return "x".join(str(level[0]) for level in levels[:-1])
        return "/".join(",".join(map(str, level)) for level in levels[:-1])

    def __len__(self) -> int:
        return len(self.parents)

    def with_level(self, counts: dict[int, int], width: int) -> "Tree":
        """The tree with drafts at some of its lowest slots, and `width` more slots; those not needed are no children.

        The same growth gives the very same tree, of which most is known then.
        """
        return grown(self, tuple(sorted(item for item in counts.items() if item[1])), width)

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """How many slots draw on each level."""
        return tuple(len(drawing.slots) for drawing in self.draws)

    @cached_property
    def groups(self) -> int:
        """How many numbers of drafts slots have, summed over the levels."""
        return sum(len(set(drawing.counts)) for drawing in self.draws)

    @cached_property
    def forks(self) -> int:
        """On how many levels a slot draws several tokens, whose verdicts take a rule and not a coupling."""
        return sum(max(drawing.counts) > 1 for drawing in self.draws)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of every slot; the root has depth 0."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return tuple(depths)

    @cached_property
    def depth_of_slots(self) -> Int[Tensor, " slots"]:
        """The depths as a tensor."""
        return torch.tensor(self.depths)

    @cached_property
    def sees(self) -> Bool[Tensor, "slots slots"]:
        """Whether a slot sees another: itself and what is above it."""
        sees = torch.eye(len(self), dtype=torch.bool)
        for slot, parent in enumerate(self.parents):
            if parent >= 0:
                sees[slot] |= sees[parent]
        return sees

    def path(self, slot: int) -> list[int]:
        """The slots that lead to one below the root, itself included; none lead to the root."""
        path: list[int] = []
        while slot:
            path.insert(0, slot)
            slot = self.parents[slot]
        return path

    def slots_at(self, depth: int) -> range:
        """The slots at a depth."""
        if not 0 < depth <= len(self.draws):
            return range(int(depth == 0))
        above = self.draws[depth - 1]
        return range(above.first[0], above.first[-1] + above.counts[-1])

    def children(self, slots: Sequence[int]) -> list[int]:
        """The slots of all children of `slots`."""
        return [self.first_child[slot] + rank for slot in slots for rank in range(self.drafts[slot])]

    @cached_property
    def branches(self) -> bool:
        """Whether a node that draws has siblings."""
        return any(self.drafts[self.parents[slot]] > 1 for slot in range(1, len(self)) if self.drafts[slot])

    @cached_property
    def first_child(self) -> dict[int, int]:
        """By drawing slot its first child's slot; the others follow it."""
        first: dict[int, int] = {}
        for slot, parent in enumerate(self.parents[1:], 1):
            first.setdefault(parent, slot)
        return first

    @cached_property
    def draws(self) -> tuple[Drawing, ...]:
        """For every depth at which something is drawn where it is."""
        levels: list[list[int]] = [[] for _ in range(max(self.depths) + 1)]
        for slot, count in enumerate(self.drafts):
            if count:
                levels[self.depths[slot]].append(slot)
        return tuple(self.drawing(slots) for slots in levels if slots)

    def drawing(self, slots: list[int]) -> Drawing:
        """Drawing at these slots."""
        counts, first = tuple(self.drafts[slot] for slot in slots), [self.first_child[slot] for slot in slots]
        return Drawing(slots, counts, first)


NO_DRAFTS = Tree((-1,), (0,))


@lru_cache(2048)
def grown(tree: Tree, counts: tuple[tuple[int, int], ...], width: int) -> Tree:
    """As `Tree.with_level`, of slots with their drafts; what is known of the slots above is not worked out again."""
    parents, drafts, first, old = list(tree.parents), list(tree.drafts), dict[int, int](), len(tree)
    for slot, count in counts:
        first[slot] = len(parents)
        parents += [slot] * count
        drafts[slot] = count
    used, size, depth = len(parents), old + width, 1 + max(tree.depths)
    found = Tree((*parents, *[-1] * (size - used)), (*drafts, *[0] * width))
    drawn = (Drawing(list(first), tuple(count for _, count in counts), list(first.values())),) if counts else ()
    depths = (*tree.depths, *[depth] * (used - old), *[0] * (size - used))
    vars(found).update(depths=depths, first_child=tree.first_child | first, draws=tree.draws + drawn)
    return found


def drafts_of(text: str) -> list[int]:
    """The drafts of every slot, from those of each level; the last level's slots are leaves."""
    drafts = [number(count) for level in text.split("/") for count in level.split(",")]
    leaves = 1 + sum(drafts) - len(drafts)
    if sum(drafts) > MOST_NODES:
        raise too_large()
    return drafts + [0] * max(leaves, 0)


def number(digits: str) -> int:
    """A number of drafts or levels, as long as a tree can have so many."""
    if len(digits) > 9 or int(digits) > MOST_NODES:
        raise too_large()
    return int(digits)


def too_large() -> AdviceError:
    """What to say of a tree that nobody can want."""
    return AdviceError(f"the tree has more than {MOST_NODES} nodes; use a smaller one")


def is_paths(listed: object) -> bool:
    """Whether JSON is a list of paths that lead somewhere."""
    return (
        isinstance(listed, list)
        and bool(listed)
        and all(isinstance(path, list) and path for path in listed)
        and all(type(rank) is int and 0 <= rank < MOST_NODES for path in listed for rank in path)
    )


def span(slots: Sequence[int]) -> slice | list[int]:
    """An index for these slots: a slice where they stand next to each other, which views instead of copying."""
    first, last = slots[0], slots[-1]
    return slice(first, last + 1) if list(slots) == list(range(first, last + 1)) else list(slots)
