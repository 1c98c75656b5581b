"""Trees of drafts: the shape that is asked for, and one row's tree as it was drawn."""

import math
from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.decoding.shapes import NO_DRAFTS as NO_DRAFTS
from multidraft.decoding.shapes import TREE_FORMS as TREE_FORMS
from multidraft.decoding.shapes import Tree as Tree
from multidraft.decoding.shapes import TreeShape

NodePath = tuple[int, ...]
MIN_COMPLETE_MASS = 0.999  # the sum of probabilities from which on nothing is missing


@dataclass(frozen=True)
class LevelScores:
    """What a drafter said at the nodes of a level, a line each."""

    logits: Float[Tensor, "lines columns"]
    is_partial: bool = False  # whether their exponentials are probabilities that may sum to less than one

    @cached_property
    def known_probs(self) -> list[list[float] | None]:
        """By line, the probabilities of the most likely tokens if the drafter says how much of the law it knows.

        That is what a look-up or an n-gram model has counted, and so how likely it is right.
        """
        if not self.is_partial:
            return [None] * len(self.logits)
        likely = np.exp(self.logits.float().cpu().numpy())  # columns are few, and NumPy's calls cheaper than torch's
        return [np.sort(line)[:-9:-1].tolist() if line.sum() < MIN_COMPLETE_MASS else None for line in likely]

    @cached_property
    def confidences(self) -> list[float]:
        """By line, the largest probability at temperature 1, whatever drafts are drawn at; 0 where there is none."""
        logits = self.logits.float()
        largest = logits.amax(-1)
        return (largest if self.is_partial else largest - logits.logsumexp(-1)).exp().nan_to_num(nan=0.0).tolist()


@dataclass
class NodeLaw:
    """What the drafts at a node were really drawn from: all other tokens have probability 0.

    Several drafters (the law `distinct`) have a line each, over the same ids.
    """

    ids: Int[np.ndarray, " support"]  # distinct; of equally likely ones the lower stands first
    probabilities: Float[np.ndarray, "*drafters support"]  # float64; each line sums to one
    scores: LevelScores | None = None  # what the (first) drafter said, in this line
    line: int = 0
    accepted: list[float] | None = None  # by number of drafts at the node, how likely a policy takes that to be
    certainty: float | None = None  # of a token that was looked up: how likely it is right

    @property
    def known_probs(self) -> list[float] | None:
        """The probabilities of the most likely tokens, if the drafter says how much of the law it knows."""
        if self.certainty is not None:
            return [self.certainty]
        return None if self.scores is None else self.scores.known_probs[self.line]

    @property
    def confidence(self) -> float:
        """The largest probability at temperature 1; 1 where nothing is known of it."""
        if self.certainty is not None:
            return self.certainty
        return 1.0 if self.scores is None else self.scores.confidences[self.line]


def stack_distributions(
    node_laws: Sequence[NodeLaw], drafts: int, padding: int = 0
) -> Float[Tensor, "nodes *drafts support"]:
    """The distributions over places in their ids, and `padding` zeros or more; several drafters take turns."""
    lines = [law.probabilities for law in node_laws]
    if lines[0].ndim > 1:
        lines = [line[np.arange(drafts) % len(line)] for line in lines]
    filled = np.zeros((len(node_laws), *lines[0].shape[:-1], padding + max(line.shape[-1] for line in lines)))
    for place, line in enumerate(lines):
        filled[place, ..., : line.shape[-1]] = line
    return torch.from_numpy(filled)


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
    is_seeded: bool = False  # it may depend on its own row alone
    max_depth: float | int = math.inf  # of drafts that can be kept before the row ends; static trees may be deeper
    backlog: int = 0  # kept tokens that the draft model has read in this step, before any node
    children: dict[int, dict[int, int]] = field(default_factory=dict)  # by node and token
    ranks: list[int] = field(default_factory=lambda: [0])  # which of the drafts at its parent made a node first
    reach: dict[int, float] = field(default_factory=dict)  # how likely a policy takes nodes to be on the accepted path
    static_shape: TreeShape | None = None  # that was asked for, if it was known beforehand
    slots: dict[int, list[int]] = field(default_factory=lambda: {0: [0]})  # where nodes stand in it

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
        for rank, token in enumerate(self.drawn_tokens(node)):
            if token not in children:
                children[token] = len(self.tokens)
                self.tokens.append(token)
                self.ranks.append(rank)
        depth = self.depths[node] + 1
        self.parents += [node] * len(children)
        self.depths += [depth] * len(children)
        if children:
            if depth == len(self.levels):
                self.levels.append([])
            self.levels[depth] += children.values()

    def drawn_tokens(self, node: int) -> list[int]:
        """The tokens drawn at a node in their order, duplicates kept if the law repeats tokens."""
        tokens = [token for token in self.tuples[node] if token >= 0]
        return tokens if self.can_repeat else list(dict.fromkeys(tokens))

    def copy(self) -> "TokenTree":
        """Another tree that has grown to the same, and may go on by itself."""
        values = {name: copy(value) for name, value in vars(self).items()}
        return TokenTree(**values | {"levels": deepcopy(self.levels), "slots": deepcopy(self.slots)})

    @property
    def shape(self) -> TreeShape:
        """What the tree looks like: every node with as many drafts as became nodes of their own."""
        return TreeShape(tuple(self.parents), tuple(len(self.children.get(node, ())) for node in range(len(self))))

    @property
    def name(self) -> str:
        """What reports call the shape: the one that was asked for, or what the tree has grown to."""
        return (self.static_shape or self.shape).name
