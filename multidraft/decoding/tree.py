"""Trees of drafts: the shape that is asked for, and one row's tree as it was drawn."""

import json
import math
import re
from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError

Path = tuple[int, ...]
MAX_NODES = 4096
MIN_COMPLETE_MASS = 0.999  # the sum of probabilities from which on nothing is missing
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


@dataclass
class NodeLaw:
    """What the drafts at a node were really drawn from: all other tokens have probability 0.

    Several drafters (the law `distinct`) have a line each, over the same ids.
    """

    ids: Int[np.ndarray, " support"]  # distinct; of equally likely ones the lower stands first
    probabilities: Float[np.ndarray, "*drafters support"]  # float64; each line sums to one
    logits: Float[Tensor, " columns"] | None = None  # what the (first) drafter said
    partial: bool = False  # whether their exponentials are probabilities that may sum to less than one

    @cached_property
    def known(self) -> list[float] | None:
        """The probabilities of the most likely tokens of a drafter that says how much of the law it knows; else None.

        That is what a look-up or an n-gram model has counted, and so how likely it is right.
        """
        if self.logits is None or not self.partial:
            return None
        likely = self.logits.exp()
        return likely.topk(min(8, len(likely))).values.tolist() if float(likely.sum()) < MIN_COMPLETE_MASS else None

    @cached_property
    def confidence(self) -> float:
        """The largest probability at temperature 1, whatever drafts are drawn at; 1 where nothing is known of it."""
        if self.logits is None:
            return 1.0
        logits = self.logits.float().cpu().numpy()
        return math.exp(logits.max()) if self.partial else 1 / float(np.exp(logits - logits.max()).sum())


@dataclass
class TokenTree:
    """One row's drafted tree: node 0 is the root, and every node is a distinct token below its parent.

    Nodes stand in breadth-first order, children of a node next to each other. `tuples[node]` is what was drawn there,
    in order: -1 where a position is empty, a token twice where it was drawn twice; `numbers[node]` are the uniform
    numbers that it was drawn with.
    """

    tokens: list[int]
    can_repeat: bool = False  # whether two drafts at a node may be the same token by their law
    parents: list[int] = field(default_factory=lambda: [-1])
    depths: list[int] = field(default_factory=lambda: [0])
    levels: list[list[int]] = field(default_factory=lambda: [[0]])  # the nodes of every depth
    laws: dict[int, NodeLaw] = field(default_factory=dict)  # of nodes that the draft model has read
    counts: dict[int, int] = field(default_factory=dict)  # drafts, of nodes at which something was drawn
    tuples: dict[int, list[int]] = field(default_factory=dict)
    numbers: dict[int, list[float]] = field(default_factory=dict)
    places: dict[int, list[int]] = field(default_factory=dict)  # the tuples as places in the laws' ids
    read: dict[int, int] = field(default_factory=dict)  # where nodes stand among the draft model's pending tokens
    backlog: int = 0  # kept tokens that the draft model has read in this step, before any node
    children: dict[int, dict[int, int]] = field(default_factory=dict)  # by node and token
    slots: dict[int, list[int]] = field(default_factory=lambda: {0: [0]})  # where nodes stand in a static shape

    def __len__(self) -> int:
        return len(self.tokens)

    def level(self, depth: int) -> list[int]:
        """The nodes at a depth."""
        return self.levels[depth] if depth < len(self.levels) else []

    def has_drafts(self, node: int) -> bool:
        """Whether anything was drawn at the node; a draw that came out empty counts."""
        return node in self.counts

    def path(self, node: int) -> list[int]:
        """The nodes that lead to one below the root, itself included; none lead to the root."""
        path: list[int] = []
        while node:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def add(self, node: int, drafts: int, places: list[int], numbers: list[float]) -> None:
        """Note what was drawn at a node, after the nodes before it: its distinct tokens become nodes."""
        ids = self.laws[node].ids
        drafted = [int(ids[place]) if place >= 0 else -1 for place in places]
        self.counts[node], self.places[node], self.tuples[node], self.numbers[node] = drafts, places, drafted, numbers
        children = self.children[node] = dict[int, int]()
        for token in drafted:
            if token >= 0 and token not in children:
                children[token] = len(self.tokens)
                self.tokens.append(token)
        depth = self.depths[node] + 1
        self.parents += [node] * len(children)
        self.depths += [depth] * len(children)
        if children:
            if depth == len(self.levels):
                self.levels.append([])
            self.levels[depth] += children.values()

    def drawn(self, node: int) -> list[int]:
        """The tokens drawn at a node in their order, duplicates kept if the law repeats tokens."""
        tokens = [token for token in self.tuples[node] if token >= 0]
        return tokens if self.can_repeat else list(dict.fromkeys(tokens))

    def rank(self, child: int) -> int:
        """Which of the drafts at its parent made a node: 0 for the one drawn first."""
        return self.drawn(self.parents[child]).index(self.tokens[child])

    def copy(self) -> "TokenTree":
        """Another tree that has grown to the same, and may go on by itself."""
        values = {name: copy(value) for name, value in vars(self).items()}
        return TokenTree(**values | {"levels": deepcopy(self.levels), "slots": deepcopy(self.slots)})

    @property
    def shape(self) -> TreeShape:
        """What the tree looks like: every node with as many drafts as became nodes of their own."""
        return TreeShape(tuple(self.parents), tuple(len(self.children.get(node, ())) for node in range(len(self))))


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
