"""Where rules meet trees: the verdict at any node of any row, computed when a walk asks for it."""

from collections import defaultdict
from functools import cache, cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from multidraft.catalogue import Scheme
from multidraft.decoding.drafted_tree import Drafts
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import Child, Verdict
from multidraft.drafting import Law
from multidraft.sampling.prefixes import Prefixes
from multidraft.sampling.settings import PerRow, Sampling
from multidraft.verification import Outcome
from multidraft.verification.coupling import residual

Place = tuple[int, int]  # a row and a slot
NOTHING = 1e-15  # claims below it are rounding: whether they take a coin must not depend on the neighbours in a batch


class Row:
    """One row's tree as plain numbers: its nodes, where a drafted token leads, and which slots drew at a node."""

    def __init__(self, tree: Tree, tokens: list[int], alias: list[int]):
        self.token = tokens
        self.slots: list[int] = []  # of the nodes, in the order in which the target reads them
        self.children: dict[int, dict[int, int]] = {}  # by node and token
        self.drawing: dict[int, list[int]] = defaultdict(list)
        self.spare: list[int] = []  # slots that are no nodes, which nobody sees
        for slot, (token, node) in enumerate(zip(tokens, alias, strict=True)):
            (self.slots if token >= 0 and node == slot else self.spare).append(slot)
            if token < 0:
                continue
            if slot:
                self.children.setdefault(alias[tree.parents[slot]], {})[token] = node
            if tree.drafts[slot]:
                self.drawing[node].append(slot)

    def has_drafts(self, node: int) -> bool:
        """Whether anything was drawn at the node."""
        return node in self.drawing

    @cached_property
    def place(self) -> dict[int, int]:
        """Where a node stands among those that the target has read."""
        return {slot: place for place, slot in enumerate(self.slots)}


def rows_of(drafts: Drafts) -> list[Row]:
    """The tree of every row."""
    tree, tokens = drafts.tree, drafts.tokens.tolist()
    alias = drafts.alias.tolist() if drafts.repeats else [list(range(len(tree)))] * len(tokens)
    return [Row(tree, *both) for both in zip(tokens, alias, strict=True)]


class Nodes:
    """The scored tree of every row: target and draft distributions, tuples, and the rule's verdicts."""

    def __init__(self, scheme: Scheme, sampling: Sampling | PerRow, drafts: Drafts, rows: list[Row], logits: Tensor):
        self.scheme, self.sampling, self.drafts, self.rows, self.logits = scheme, sampling, drafts, rows, logits
        self.acceptance: dict[int, float] = {}  # at the root, by row; asked twice, it is still one
        self.known: dict[Place, Tensor] = {}  # target distributions that have been asked for

    @property
    def at_once(self) -> bool:
        """Whether all target distributions are computed together: on a GPU one of them costs as much as all."""
        return self.sampling.is_softmax and self.logits.device.type != "cpu"

    def verdicts(self, asked: dict[int, tuple[int, float]]) -> dict[int, Verdict]:
        """For each row the rule's verdict at a node with its target scaled by a weight.

        A single draft is coupled with the target, which takes two numbers; all else goes in one batch a draft count.
        """
        ratios = self.all_ratios if self.at_once else self.ratios_at(asked)
        answers, others = dict[int, Verdict](), defaultdict[Scheme, list[int]](list)
        for row, (node, weight) in asked.items():
            slots, scheme = self.rows[row].drawing[node], self.scheme_at(row, node)
            child = self.drafts.tree.first_child[slots[0]]
            if scheme.is_coupling and len(slots) == 1 and (row, child) in ratios:
                answers[row] = self.coupled(row, node, weight, child, ratios[row, child])
            else:
                others[scheme].append(row)
        for scheme, rows in others.items():
            answers |= self.evaluate(scheme, rows, asked, ratios)
        return answers

    def scheme_at(self, row: int, node: int) -> Scheme:
        """The scheme with the number of drafts that the node has: of its slots, the one that drew most."""
        return self.scheme.with_drafts(max(self.drafts.tree.drafts[slot] for slot in self.rows[row].drawing[node]))

    def coupled(self, row: int, node: int, weight: float, slot: int, ratio: float) -> Verdict:
        """The verdict on a single draft: p/q says what it may claim, and the rest is computed if it is rejected."""
        accept = min(1.0, weight * ratio)
        if node == 0:
            self.acceptance[row] = accept

        @cache
        def left() -> Tensor:
            target, draft = self.target([row], (node,))[0], self.draft([row], (node,))[0]
            return residual(target, draft, weight, accept)

        children = (Child(slot, accept, ratio),) if accept > NOTHING else ()
        return Verdict(children, left, lambda: float(left().sum()))

    def evaluate(
        self, scheme: Scheme, rows: list[int], asked: dict[int, tuple[int, float]], ratios: dict[Place, float]
    ) -> dict[int, Verdict]:
        """Verdicts at nodes that drew the same number of tokens."""
        nodes, weights = zip(*(asked[row] for row in rows), strict=True)
        target, draft, tuples = self.target(rows, nodes), self.draft(rows, nodes), self.tuples(rows, nodes, scheme.law)
        outcome = scheme.verify(scaled(target, weights), draft, tuples)
        claims = enumerate(zip(rows, nodes, tuples.tolist(), outcome.accept.tolist(), strict=True))
        return {
            row: self.verdict(row, node, tokens, accept, ratios, outcome, i)
            for i, (row, node, tokens, accept) in claims
        }

    def verdict(
        self,
        row: int,
        node: int,
        tokens: list[int],
        accept: list[float],
        ratios: dict[Place, float],
        outcome: Outcome,
        index: int,
    ) -> Verdict:
        """The verdict at one node: duplicates added up."""
        claims: dict[int, float] = defaultdict(float)
        for token, claim in zip(tokens, accept, strict=True):
            claims[token] += claim
        if node == 0:
            self.acceptance[row] = sum(claims.values())
        slots = ((self.rows[row].children[node][token], claim) for token, claim in claims.items() if claim > NOTHING)
        children = tuple(Child(slot, claim, ratios[row, slot]) for slot, claim in slots)
        return Verdict(children, lambda: outcome.residual[index], lambda: float(outcome.residual_mass[index]))

    @cached_property
    def all_ratios(self) -> dict[Place, float]:
        """Target over draft of every drafted token: how much the draft underrates it."""
        width = self.logits.shape[1]
        places = ((row, node) for row, tree in enumerate(self.rows) for node in tree.children)
        where = {(row, node): row * width + self.rows[row].place[node] for row, node in places}
        return self.ratios(where, self.everywhere.flatten(0, 1))

    def ratios_at(self, asked: dict[int, tuple[int, float]]) -> dict[Place, float]:
        """The same of those drafted at some nodes."""
        nodes = tuple(node for node, _ in asked.values())
        where = {place: i for i, place in enumerate(zip(asked, nodes, strict=True))}
        return self.ratios(where, self.target(list(asked), nodes))

    def ratios(self, where: dict[Place, int], target: Float[Tensor, "some vocabulary"]) -> dict[Place, float]:
        """The same; `where` says in which row of `target` a node has its distribution."""
        children = [(place, self.rows[place[0]].children.get(place[1], {})) for place in where]
        points = [(where[place], token) for place, below in children for token in below]
        likely = iter(look_up(target, points))
        return {
            (row, slot): next(likely) / self.likelihood[row][slot]
            for (row, _), below in children
            for slot in below.values()
        }

    @cached_property
    def likelihood(self) -> list[dict[int, float]]:
        """The drafted tokens' probabilities, by row and slot."""
        return self.drafts.likelihood()

    @cached_property
    def everywhere(self) -> Float[Tensor, "batch nodes vocabulary"]:
        """The target's distributions at all nodes at once."""
        return self.sampling.target(self.logits)

    def target(self, rows: list[int], nodes: tuple[int, ...]) -> Float[Tensor, "asked vocabulary"]:
        """The target's distribution at one node of each of the rows."""
        if self.at_once:
            return self.at(self.everywhere, rows, nodes)
        places = list(zip(rows, nodes, strict=True))
        if new := [place for place in dict.fromkeys(places) if place not in self.known]:
            rows, nodes = [row for row, _ in new], tuple(node for _, node in new)
            self.known |= zip(new, self.sampling.of_rows(rows).target(*self.scored(rows, nodes)), strict=True)
        return torch.stack([self.known[place] for place in places]) if len(places) > 1 else self.known[places[0]][None]

    def scored(
        self, rows: list[int], nodes: tuple[int, ...]
    ) -> tuple[Float[Tensor, "asked vocabulary"], Prefixes | None]:
        """The target's logits at one node of each of the rows, and the sequences that lead there."""
        return self.at(self.logits, rows, nodes), self.drafts.prefixes(zip(rows, nodes, strict=True))

    def at(self, values: Tensor, rows: list[int], nodes: tuple[int, ...]) -> Float[Tensor, "asked vocabulary"]:
        """What the target has said at one node of each of the rows."""
        places = [self.rows[row].place[node] for row, node in zip(rows, nodes, strict=True)]
        return values[rows[0], places[0]][None] if len(rows) == 1 else values[rows, places]  # a view where it can be

    def draft(self, rows: list[int], nodes: tuple[int, ...]) -> Float[Tensor, "asked *drafts vocabulary"]:
        """The draft distributions that the nodes' tuples were drawn from: of a node's slots, the one that drew most."""
        count = self.drafts.tree.drafts.__getitem__
        slots = [(row, max(self.rows[row].drawing[node], key=count)) for row, node in zip(rows, nodes, strict=True)]
        lines = [self.drafts.draft[slot][row : row + 1] for row, slot in slots]
        return torch.cat(lines) if len(lines) > 1 else lines[0]

    def rank(self, row: int, node: int, slot: int) -> int:
        """Which of the drafts at a node made the child `slot`: 0 for the one drawn first."""
        tree = self.drafts.tree
        parent = tree.parents[slot]
        before = sum(tree.drafts[other] for other in self.rows[row].drawing[node] if other < parent)
        return before + slot - tree.first_child[parent]

    def tuples(self, rows: list[int], nodes: tuple[int, ...], law: Law) -> Int[Tensor, "asked width"]:
        """The nodes' tuples: the draws of all slots of a node, one after another; shorter ones are filled up."""
        drawing = [(row, self.rows[row].drawing[node]) for row, node in zip(rows, nodes, strict=True)]
        if len(drawing) == 1 and len(drawing[0][1]) == 1:  # views instead of copies
            row, (slot,) = drawing[0]
            return self.drafts.drafted[row : row + 1, slot, : law.width]
        drafted = [self.drafts.drafted[row, slots, : law.width].flatten() for row, slots in drawing]
        return pad_sequence(drafted, batch_first=True, padding_value=-1)


def scaled(target: Float[Tensor, "asked vocabulary"], weights: tuple[float, ...]) -> Float[Tensor, "asked vocabulary"]:
    """Every row times its weight."""
    if len(weights) == 1:
        return target if weights[0] == 1 else target * weights[0]
    return target * torch.tensor(weights, dtype=target.dtype, device=target.device)[:, None]


def look_up(values: Float[Tensor, "some vocabulary"], points: list[tuple[int, int]]) -> list[float]:
    """A few numbers, each given by its row and column."""
    if values.device.type == "cpu":
        array = values.numpy()
        return [float(array[point]) for point in points]
    return values[tuple(torch.tensor(points, device=values.device).T)].tolist() if points else []
