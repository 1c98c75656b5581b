"""Verdicts at all nodes before the walk begins, for devices: levels follow each other there, and the host waits once.

A walk comes to a node with one weight only, if it comes: the children's weights follow from their parent's verdict, and
no coin is in them (`walks.WEIGHTS`). So a whole tree can be judged from the root downwards without asking anything. The
claims of all nodes are then fetched together with the tokens, and with the last token at every node where the walk may
end, for the number that it will be drawn with is known. The walk goes on among plain numbers.
"""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from multidraft.decoding.judging import Group, Inputs, Judging, groups_in
from multidraft.decoding.pieces import PIECES
from multidraft.decoding.rows import rows_with
from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.verify import NEGLIGIBLE, Asked, Verdicts
from multidraft.decoding.walks import WEIGHTS, Child, Ending, Verdict, Walker
from multidraft.machine.device import placed
from multidraft.verification.scheme import Scheme

ROUNDING = 1e-9  # of a weight, between here and there; another one is not foreseen


def verdicts_of(scheme: Scheme, tree: ScoredTree, walk: Walker, numbers: Sequence[float] = ()) -> Verdicts:
    """Verdicts as a walk asks for them, or foreseen where looking is waiting, with last tokens drawn with `numbers`."""
    weights_of = WEIGHTS.get(walk)
    if weights_of is None or scheme.law.several or not (tree.drafts.read_whole and tree.at_once):
        return Verdicts(scheme, tree)
    return Foreseen(scheme, tree, weights_of, numbers)


class Foreseen(Verdicts):
    """A scheme's rule over a tree in which every slot is a node of its own, the same in all rows."""

    def __init__(
        self, scheme: Scheme, tree: ScoredTree, weights_of: Callable[[Tensor], Tensor], numbers: Sequence[float]
    ):
        super().__init__(scheme, tree)
        drafts, sampling = tree.drafts, tree.sampling
        uniform = placed(list(numbers) or [0.0] * len(drafts.tokens), drafts.tokens.device)[:, None, None]
        judging = Judging(groups_in(scheme, drafts), sampling, weights_of)
        inputs = Inputs(tree.logits, drafts.tokens, drafts.drafted, uniform, drafts.levels)
        key = (scheme, drafts.trees[0], tuple(drafts.read[0]), sampling, weights_of)
        lines, tree.everywhere, *residuals = PIECES.run(key, judging, inputs)
        self.foretold = dict[tuple[int, int, bool], int]()  # by row, node, and whether all drafts on the way were kept
        self.known = self.fetched(lines, list(zip(judging.groups, residuals, strict=True)))

    def fetched(
        self, values: Tensor, groups: list[tuple[Group, Tensor]]
    ) -> dict[tuple[int, int], tuple[float, Verdict]]:
        """By row and slot the weight and the verdict, after the one wait; the rows' tokens come with it."""
        known, size = dict[tuple[int, int], tuple[float, Verdict]](), self.tree.drafts.tokens.shape[1]
        lines = values.tolist()
        self.tree.rows = rows_with(self.tree.drafts, [list(map(int, line[:size])) for line in lines])
        for row, line in enumerate(lines):
            weights, bonus, numbers = line[size : 2 * size], line[2 * size : 3 * size], iter(line[3 * size :])
            self.foretold |= {(row, slot, True): int(token) for slot, token in enumerate(bonus)}
            for group, residual in groups:
                last, masses = ([next(numbers) for _ in group.slots] for _ in range(2))
                self.foretold |= {(row, slot, False): int(token) for slot, token in zip(group.slots, last, strict=True)}
                for place, (slot, mass) in enumerate(zip(group.slots, masses, strict=True)):
                    claims = [next(numbers) for _ in group.children[place]]
                    known[row, slot] = (
                        weights[slot],
                        verdict(group.children[place], claims, mass, partial(residual.__getitem__, (row, place))),
                    )
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


def verdict(slots: list[int], claims: list[float], mass: float, residual: Callable[[], Tensor]) -> Verdict:
    """The verdict at one node; its residual stays where it is."""
    pairs = zip(slots, claims, strict=True)
    children = tuple(Child(slot, claim) for slot, claim in pairs if claim > NEGLIGIBLE)
    return Verdict(children, residual, lambda: mass)
