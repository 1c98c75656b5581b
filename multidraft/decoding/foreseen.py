"""Verdicts at all nodes before the walk begins, for devices: levels follow each other there, and the host waits once.

A walk comes to a node with one weight only, if it comes: the children's weights follow from their parent's verdict, and
no coin is in them (`walks.WEIGHTS`). So a whole tree can be judged from the root downwards without asking anything. The
claims of all nodes are then fetched together with the tokens, and with the last token at every node where the walk may
end, for the number that it will be drawn with is known. The walk goes on among plain numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.catalogue import Scheme
from multidraft.decoding.rows import rows_with
from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.verdicts import NEGLIGIBLE, Asked, Verdicts
from multidraft.decoding.walks import WEIGHTS, Child, Ending, Verdict, Walker
from multidraft.drafting.levels import groups_of
from multidraft.drafting.places import Drawing
from multidraft.numerics.distributions import pick
from multidraft.numerics.waiting import index, placed
from multidraft.verification import Outcome

ROUNDING = 1e-9  # of a weight, between here and there; another one is not foreseen


def verdicts_of(scheme: Scheme, tree: ScoredTree, walk: Walker, numbers: Sequence[float] = ()) -> Verdicts:
    """Verdicts as a walk asks for them, or foreseen where looking is waiting, with last tokens drawn with `numbers`."""
    weights_of = WEIGHTS.get(walk)
    if weights_of is None or scheme.law.several or not (tree.drafts.read_whole and tree.at_once):
        return Verdicts(scheme, tree)
    return Foreseen(scheme, tree, weights_of, numbers)


@dataclass(frozen=True)
class Group:
    """Nodes of a level with the same number of drafts, judged together."""

    slots: list[int]
    children: list[list[int]]  # of each
    outcome: Outcome
    claims: Float[Tensor, "batch group drafts"]
    last: Int[Tensor, "batch group"]  # the token that comes instead of a draft


class Foreseen(Verdicts):
    """A scheme's rule over a tree in which every slot is a node of its own, the same in all rows."""

    def __init__(
        self, scheme: Scheme, tree: ScoredTree, weights_of: Callable[[Tensor], Tensor], numbers: Sequence[float]
    ):
        super().__init__(scheme, tree)
        self.weights_of = weights_of
        shape, tokens = tree.drafts.trees[0], tree.drafts.tokens
        self.weights = torch.ones(tokens.shape, dtype=torch.float64, device=tokens.device)
        self.uniform = placed(list(numbers) or [0.0] * len(tokens), tokens.device)[:, None, None]
        self.foretold = dict[tuple[int, int, bool], int]()  # by row, node, and whether all drafts on the way were kept
        self.known = self.fetched([group for drawing in shape.draws for group in self.judged(drawing)])

    def judged(self, drawing: Drawing) -> Iterator[Group]:
        """The outcomes of a level, and the weights of the next one's nodes."""
        for law, nodes, _ in groups_of(self.scheme.law, drawing.counts):
            slots = [drawing.slots[node] for node in nodes]
            children = [[drawing.first[node] + rank for rank in range(law.drafts)] for node in nodes]
            group = self.group(self.scheme.with_drafts(law.drafts), slots, children)
            self.weights[:, self.at(list(chain(*children)))] = self.weights_of(group.claims).flatten(1)
            yield group

    def group(self, scheme: Scheme, slots: list[int], children: list[list[int]]) -> Group:
        """What the rule says of a group, its targets scaled to the weights that the walk would come with."""
        drafts, here = self.tree.drafts, self.at(slots)
        target, tuples = self.tree.everywhere[:, here], drafts.drafted[:, here, : scheme.law.width]
        target = target * self.weights[:, here, None].to(target.dtype)
        outcome = scheme.verify(target, drafts.distributions(slice(0, len(target)), slots), tuples)
        tokens = drafts.tokens[:, self.at(list(chain(*children)))].unflatten(1, (len(slots), -1))
        same = (tokens[..., None] == tuples[..., None, :]) & (tokens >= 0)[..., None]
        claims = (same * outcome.accept.double()[..., None, :]).sum(-1)
        return Group(slots, children, outcome, claims, self.drawn(outcome.residual))

    def drawn(self, weights: Float[Tensor, "batch group vocabulary"]) -> Int[Tensor, "batch group"]:
        """A token by these weights in every row, with the row's number."""
        return pick(weights, self.uniform.expand(-1, weights.shape[1], -1))[..., 0]

    def at(self, slots: list[int]) -> slice | Tensor:
        """An index that is there already."""
        return index(tuple(slots), self.weights.device)

    def fetched(self, groups: list[Group]) -> dict[tuple[int, int], tuple[float, Verdict]]:
        """By row and slot the weight and the verdict, after the one wait; the rows' tokens come with it."""
        parts = [self.tree.drafts.tokens, self.weights, self.drawn(self.tree.everywhere)]
        for group in groups:
            parts += [group.last, group.outcome.residual_mass, group.claims.flatten(1)]
        known, size = dict[tuple[int, int], tuple[float, Verdict]](), self.weights.shape[1]
        lines = torch.cat([part.double() for part in parts], 1).tolist()
        self.tree.rows = rows_with(self.tree.drafts, [list(map(int, line[:size])) for line in lines])
        for row, line in enumerate(lines):
            weights, bonus, numbers = line[size : 2 * size], line[2 * size : 3 * size], iter(line[3 * size :])
            self.foretold |= {(row, slot, True): int(token) for slot, token in enumerate(bonus)}
            for group in groups:
                last, masses = ([next(numbers) for _ in group.slots] for _ in range(2))
                self.foretold |= {(row, slot, False): int(token) for slot, token in zip(group.slots, last, strict=True)}
                for place, (slot, mass) in enumerate(zip(group.slots, masses, strict=True)):
                    claims = [next(numbers) for _ in group.children[place]]
                    known[row, slot] = weights[slot], verdict(group, row, place, mass, claims)
        return known

    def __call__(self, asked: Asked) -> dict[int, Verdict]:
        """The verdicts that are known, and others as ever."""
        found = {row: self.known[row, node] for row, (node, _) in asked.items() if (row, node) in self.known}
        answers = {row: own for row, (weight, own) in found.items() if abs(weight - asked[row][1]) <= ROUNDING}
        rest = {row: each for row, each in asked.items() if row not in answers}
        for row, (node, _) in rest.items():
            self.foretold.pop((row, node, False), None)
        return answers | (super().__call__(rest) if rest else {})

    def last(self, endings: list[Ending], numbers: list[float]) -> list[int]:
        """Those that are known, and others as ever."""
        places = [(row, ending.leaf, ending.weights is None) for row, ending in enumerate(endings)]
        if any(place not in self.foretold for place in places):
            return super().last(endings, numbers)
        return [self.foretold[place] for place in places]


def verdict(group: Group, row: int, place: int, mass: float, claims: list[float]) -> Verdict:
    """The verdict at one node; its residual stays where it is."""
    pairs = zip(group.children[place], claims, strict=True)
    children = tuple(Child(slot, claim) for slot, claim in pairs if claim > NEGLIGIBLE)
    return Verdict(children, lambda: group.outcome.residual[row, place], lambda: mass)
