"""The shapes of trees of drafts, and the strings that describe them. Without torch."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from multidraft.errors import AdviceError

MAX_NODES = 4096
TREE_FORMS = (
    "write a chain or k-config such as 4x2x2x1, every slot's drafts such as 3/2,1,0, i.i.d. paths such as "
    "'8 paths of 4', or paths [[0],[0,0],[1]] as JSON"
)


@dataclass(frozen=True)
class TreeShape:
    """Slots in breadth-first order, children of a slot next to each other; slot 0 is the root, the last known token.

    `parents[i]` is the slot above slot i (-1 for the root), `drafts[i]` the number of tokens drawn at it, which is the
    number of its children. Slots are places for tokens: one that stays empty, or repeats a sibling, costs nothing.
    """

    parents: tuple[int, ...]
    drafts: tuple[int, ...]

    @classmethod
    def levels(cls, counts: Sequence[int]) -> "TreeShape":
        """A k-config: `counts[d]` drafts at every node of depth d. All ones make a chain."""
        if not counts or min(counts) < 1:
            raise AdviceError(
                f"tree {'x'.join(map(str, counts)) or 'of no levels'} has a level without drafts; {TREE_FORMS}"
            )
        drafts, width = list[int](), 1
        for count in counts:
            drafts += [count] * width
            width *= count
            check_num_nodes(len(drafts) + width)  # before they are made
        return cls.from_drafts(drafts + [0] * width)

    @classmethod
    def paths(cls, paths: Sequence[Sequence[int]]) -> "TreeShape":
        """A list of paths as in EAGLE: every node by the ranks of the children leading to it, parents added."""
        check_num_nodes(max([len(paths), *map(len, paths)]))
        nodes = {tuple(path[:length]) for path in paths for length in range(len(path) + 1)} | {()}
        check_num_nodes(len(nodes))
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
    def parse(cls, text: str) -> "TreeShape":
        """The shape that a string describes.

        >>> TreeShape.parse("2x1").parents
        (-1, 0, 0, 1, 2)
        """
        text = text.strip().lower()
        if re.fullmatch(r"\d+(x\d+)*", text):
            return cls.levels([parse_count(count) for count in text.split("x")])
        if re.fullmatch(r"\d+(,\d+)*(/\d+(,\d+)*)+", text):
            drafts = [parse_count(count) for count in re.split("[/,]", text)]
            return cls.from_drafts(
                drafts + [0] * (1 + check_num_nodes(sum(drafts)) - len(drafts))
            )  # the last level's: leaves
        if match := re.fullmatch(r"(\d+) paths? of ([1-9]\d*)", text):
            return cls.levels([parse_count(match[1])] + [1] * (parse_count(match[2]) - 1))
        try:
            paths = json.loads(text)
        except (ValueError, RecursionError):  # of JSON, of the digits that Python reads, of its depth
            paths = None
        if not is_list_of_paths(paths):
            raise AdviceError(f"tree {text!r} does not parse; {TREE_FORMS}")
        return cls.paths(paths)

    @classmethod
    def from_drafts(cls, drafts: Sequence[int]) -> "TreeShape":
        """The shape whose slots, in their order, draw so many tokens each."""
        parents = [-1, *(slot for slot, count in enumerate(drafts) for _ in range(count))]
        if len(parents) != len(drafts) or any(parent >= slot for slot, parent in enumerate(parents)):
            raise AdviceError(f"drafts {list(drafts)} make no tree; give one number for every slot")
        return cls(tuple(parents), tuple(drafts))

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def name(self) -> str:
        """A k-config where it is one, else the drafts of every level's slots: `3/2,1,0/1,0,0` has three levels."""
        levels: list[list[int]] = [[] for _ in range(self.depth + 1)]
        for depth, count in zip(self.depths, self.drafts, strict=True):
            levels[depth].append(count)
        if all(len(set(level)) == 1 for level in levels):
            return "x".join(str(level[0]) for level in levels[:-1])
        return "/".join(",".join(map(str, level)) for level in levels[:-1])

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of every slot; the root has depth 0."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @property
    def depth(self) -> int:
        """How many levels of drafts there are."""
        return self.depths[-1]

    @cached_property
    def first_child(self) -> dict[int, int]:
        """By drawing slot its first child's slot; the others follow it."""
        return {parent: slot for slot, parent in reversed([*enumerate(self.parents)]) if slot}


Tree = TreeShape  # its public name
NO_DRAFTS = TreeShape((-1,), (0,))


def parse_count(digits: str) -> int:
    """A number of drafts or levels, as long as a tree can have so many."""
    return check_num_nodes(int(digits) if len(digits) < 10 else 10**9)


def check_num_nodes(nodes: int) -> int:
    """So many nodes, if anybody can want them."""
    if nodes > MAX_NODES:
        raise AdviceError(f"the tree has more than {MAX_NODES} nodes; use a smaller one")
    return nodes


def is_list_of_paths(values: object) -> bool:
    """Whether JSON is a list of paths that lead somewhere."""
    if not isinstance(values, list) or not values or not all(isinstance(path, list) and path for path in values):
        return False
    return all(type(rank) is int and 0 <= rank < MAX_NODES for path in values for rank in path)
