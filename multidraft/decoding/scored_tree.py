"""The scored tree of every row: target and draft distributions, and drafted tuples, at any node that is asked for."""

from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from multidraft.decoding.drafted_tree import DraftTree
from multidraft.decoding.rows import Row, rows_of
from multidraft.machine.device import waits
from multidraft.sampling.prefixes import Prefixes
from multidraft.sampling.settings import PerRow, Sampling
from multidraft.verification.law import Law

FEW = 1 << 16  # numbers of which a softmax on a CPU costs little more than the calls of several
Place = tuple[int, int]  # a row and a node


class ScoredTree:
    """A drafted tree with the target's logits at every node."""

    def __init__(self, sampling: Sampling | PerRow, drafts: DraftTree, rows: list[Row] | None, logits: Tensor):
        self.sampling, self.drafts, self.logits = sampling, drafts, logits
        if rows is not None:
            self.rows = rows
        self.known: dict[Place, Tensor] = {}  # target distributions that have been asked for

    @cached_property
    def rows(self) -> list[Row]:
        """The tree of every row."""
        return rows_of(self.drafts)

    @property
    def at_once(self) -> bool:
        """Whether all target distributions are computed together: on a GPU, or if they are short, one costs as much."""
        return self.sampling.is_softmax and (waits(self.logits) or self.logits.numel() <= FEW)

    @cached_property
    def everywhere(self) -> Float[Tensor, "batch nodes vocabulary"]:
        """The target's distributions at all nodes at once."""
        return self.sampling.target(self.logits)

    def target(self, rows: list[int], nodes: tuple[int, ...]) -> Float[Tensor, "asked vocabulary"]:
        """The target's distribution at one node of each of the rows."""
        if self.at_once:
            return self.line(self.everywhere, rows, nodes)
        if len(rows) == 1:
            return self.one(rows[0], nodes[0])[None]
        places = list(zip(rows, nodes, strict=True))
        if new := [place for place in dict.fromkeys(places) if place not in self.known]:
            rows, nodes = [row for row, _ in new], tuple(node for _, node in new)
            self.known |= zip(new, self.sampling.of_rows(rows).target(*self.scored(rows, nodes)), strict=True)
        return torch.stack([self.known[place] for place in places])

    def one(self, row: int, node: int) -> Float[Tensor, " vocabulary"]:
        """The same at one node."""
        if self.at_once:
            return self.everywhere[row, self.rows[row].place[node]]
        if (row, node) not in self.known:
            self.known[row, node] = self.sampling.of_rows([row]).target(*self.scored([row], (node,)))[0]
        return self.known[row, node]

    def scored(
        self, rows: list[int], nodes: tuple[int, ...]
    ) -> tuple[Float[Tensor, "asked vocabulary"], Prefixes | None]:
        """The target's logits at one node of each of the rows, and the sequences that lead there."""
        return self.line(self.logits, rows, nodes), self.drafts.prefixes(zip(rows, nodes, strict=True))

    def line(self, values: Tensor, rows: list[int], nodes: tuple[int, ...]) -> Float[Tensor, "asked vocabulary"]:
        """What the target has said at one node of each of the rows."""
        places = [self.rows[row].place[node] for row, node in zip(rows, nodes, strict=True)]
        return values[rows[0], places[0], None] if len(rows) == 1 else values[rows, places]  # a view where it can be

    def draft(self, rows: list[int], nodes: tuple[int, ...]) -> Float[Tensor, "asked *drafts vocabulary"]:
        """The draft distributions that the nodes' tuples were drawn from: of a node's slots, the one that drew most."""
        asked = zip(rows, nodes, strict=True)
        lines = [self.drafts.distribution(row, self.rows[row].widest(node)) for row, node in asked]
        return torch.stack(lines) if len(lines) > 1 else lines[0][None]

    def tuples(self, rows: list[int], nodes: tuple[int, ...], law: Law) -> Int[Tensor, "asked width"]:
        """The nodes' tuples: the draws of all slots of a node, one after another; shorter ones are filled up."""
        drew = [(row, self.rows[row].drew[node]) for row, node in zip(rows, nodes, strict=True)]
        if len(drew) == 1 and len(drew[0][1]) == 1:  # views instead of copies
            row, (slot,) = drew[0]
            return self.drafts.drafted[row : row + 1, slot, : law.width]
        drafted = [self.drafts.drafted[row, slots, : law.width].flatten() for row, slots in drew]
        return pad_sequence(drafted, batch_first=True, padding_value=-1)
