"""The law of `verify_batched` by itself: exact, over every tree and every number that it may be given.

Its uniform numbers are not looped over. The flips of a row cut the cube of its numbers into boxes, and in each box the
answer is the same: it is asked for at two corners of every box, and weighed with the box's volume. The cuts of the
number for the last token are found by bisection.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from test_verify_tree import TARGET, drawn
from torch import Tensor

import multidraft as md
from multidraft.auditing.enumeration import SequenceLaw, add, first_tokens, largest_difference, target_law
from multidraft.decoding.tree import Tree
from multidraft.tensor_trees import batched
from multidraft.tensor_trees.batched import verify_batched

pytestmark = pytest.mark.usefixtures("unchecked")
RECURSIVE, INSIDE, BISECTIONS = "without_replacement:recursive_rejection", 1e-9, 50
MIN_VOLUME = 1e-15  # of a box: what is smaller is rounding
CASES = [  # scheme, walk, tree, how many numbers a row has: one serves all flips, or each has one of its own
    (RECURSIVE, "commit", "[[0],[1],[2],[0,0],[0,1],[0,0,0]]", 1),
    (RECURSIVE, "commit", "2x2", 6),
    (RECURSIVE, "commit", "2x1", 2),
    ("iid:recursive_rejection", "commit", "2x2", 1),
    ("iid:naive", "commit", "2x1x1", 6),
    ("top:naive", "commit", "3x1x1", 6),
    (RECURSIVE, "deferred", "1x1x1", 1),
    (RECURSIVE, "deferred", "1x1x1", 9),
    ("top:naive", "deferred", "1x1x1", 9),
    ("iid:lorenz", "deferred", "1x1x1", 2),
    ("iid:lorenz", "commit", "1x1x1", 3),
]
Flips = list[tuple[float, bool]]


class Box(NamedTuple):
    """Numbers of a row of the batch: an interval for each, and how many flips they have the same answers to."""

    row: int
    intervals: tuple[tuple[float, float], ...]
    flips: int

    @property
    def volume(self) -> float:
        """The probability of its numbers."""
        return float(torch.tensor([high - low for low, high in self.intervals], dtype=torch.float64).prod())

    def at(self, share: float) -> list[float]:
        """Its numbers at so much of every interval."""
        return [low + share * (high - low) for low, high in self.intervals]

    def parts(self, flips: Flips) -> Iterator["Box"]:
        """The box cut by what was asked beyond its flips: the part of these answers first, then the others."""
        box, others = self, list[Box]()
        for turn, (probability, heads) in enumerate(flips[self.flips :], self.flips):
            place = turn % len(box.intervals)
            low, high = box.intervals[place]
            cut = low + min(max(probability, 0.0), 1.0) * (high - low)
            sides = [(low, cut), (cut, high)][:: 1 if heads else -1]
            ours, other = (
                Box(self.row, (*box.intervals[:place], side, *box.intervals[place + 1 :]), turn + 1) for side in sides
            )
            box, others = ours, [*others, other]
        yield box
        yield from (other for other in others if other.volume > MIN_VOLUME)


class Case:
    """Trees of a scheme, a row each, and the answers of `verify_batched` for them."""

    def __init__(self, name: str, walk: str, tree: str, numbers: int, drawn_as: str | None = None):
        (self.tables, self.target, self.draft), self.chances = drawn(tree, md.scheme(drawn_as or name))
        self.scheme, self.walk, self.shape, self.numbers = md.scheme(name), walk, Tree.parse(tree), numbers
        depths = [0]
        for parent in self.shape.parents[1:]:
            depths.append(depths[parent] + 1)
        pairs = [*zip(self.shape.drafts, depths, strict=True)]
        self.siblings = tuple(max(n for n, d in pairs if d == depth) for depth in range(self.shape.depth))

    def paths(self, rows: list[int], numbers: list[list[float]], final: Tensor) -> list[tuple[int, ...]]:
        """The emitted tokens of some rows."""
        tables = [table[rows] for table in self.tables]
        tables[1] = torch.arange(tables[0].numel()).view(tables[0].shape)
        uniform = torch.tensor(numbers, dtype=torch.float64)
        answer = verify_batched(
            *tables, self.target[rows], self.draft[rows], uniform, final,
            scheme=self.scheme, walk=self.walk, siblings=self.siblings,
        )  # fmt: skip
        accepted, length = answer[1].long(), answer[2].tolist()
        tokens = answer[0][accepted.clamp(min=0)].tolist()
        return [tuple(row[: 1 + count]) for row, count in zip(tokens, length, strict=True)]

    def boxes(self, monkeypatch: pytest.MonkeyPatch) -> list[Box]:
        """Boxes of numbers with the same answer, of all rows together."""
        asked_flips = defaultdict[int, Flips](list)
        flip = batched.BatchedCoins.flip

        def recorded(coins: batched.BatchedCoins, probability: Tensor, asks: Tensor) -> Tensor:
            heads = flip(coins, probability, asks)
            for row in asks.nonzero()[:, 0].tolist():
                asked_flips[row].append((float(probability[row]), bool(heads[row])))
            return heads

        done, pending = list[Box](), [Box(row, ((0.0, 1.0),) * self.numbers, 0) for row in range(len(self.chances))]
        with monkeypatch.context() as patch:
            patch.setattr(batched.BatchedCoins, "flip", recorded)
            while pending:
                asked_flips.clear()
                self.paths([box.row for box in pending], [box.at(0.5) for box in pending], self.middle(len(pending)))
                parts = [[*box.parts(asked_flips[index])] for index, box in enumerate(pending)]
                done += [first for first, *_ in parts]
                pending = [other for _, *others in parts for other in others]
        return done

    def middle(self, rows: int) -> Tensor:
        """Numbers for last tokens."""
        return torch.full((rows,), 0.5, dtype=torch.float64)

    def law(self, monkeypatch: pytest.MonkeyPatch) -> SequenceLaw:
        """The law of the emitted tokens."""
        boxes = self.boxes(monkeypatch)
        rows, inner = [box.row for box in boxes], [box.at(0.5) for box in boxes]
        paths = [path[:-1] for path in self.paths(rows, inner, self.middle(len(rows)))]
        for share in (INSIDE, 1 - INSIDE):
            corner = self.paths(rows, [box.at(share) for box in boxes], self.middle(len(rows)))
            assert [path[:-1] for path in corner] == paths
        cuts = [self.cuts(rows, inner, token) for token in range(self.target.shape[-1])]
        law: SequenceLaw = {}
        for index, (box, path) in enumerate(zip(boxes, paths, strict=True)):
            below = 0.0
            for token, cut in enumerate(cuts):
                add(law, (*path, token), self.chances[box.row] * box.volume * (cut[index] - below))
                below = cut[index]
        return law

    def cuts(self, rows: list[int], numbers: list[list[float]], token: int) -> list[float]:
        """The number up to which each row's last token is at most this one."""
        low, high = torch.zeros(len(rows), dtype=torch.float64), torch.ones(len(rows), dtype=torch.float64)
        for _ in range(BISECTIONS if token < self.target.shape[-1] - 1 else 0):
            middle = (low + high) / 2
            is_below = torch.tensor([path[-1] <= token for path in self.paths(rows, numbers, middle)])
            low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
        return high.tolist()


def off(monkeypatch: pytest.MonkeyPatch, *case: object, **changes: object) -> float:
    """The largest error of a probability of the first tokens."""
    trees = Case(*case, **changes)
    depth = trees.shape.depth
    ours = first_tokens(trees.law(monkeypatch), TARGET, depth)
    return largest_difference(ours, target_law(TARGET, depth))


@pytest.mark.parametrize("case", CASES)
def test_its_law_is_the_targets(monkeypatch: pytest.MonkeyPatch, case: tuple) -> None:
    assert off(monkeypatch, *case) < 1e-12


def forgetful(coins: batched.BatchedCoins, children: Tensor, masses: Tensor, asks: Tensor) -> Tensor:
    """`choose`, which tosses for every child what it may claim, and forgets what those before it have claimed."""
    chosen = torch.full_like(children[:, 0], -1)
    for child, mass in zip(children.unbind(-1), masses.unbind(-1), strict=True):
        chosen = torch.where(coins.flip(mass, asks & (chosen < 0) & (mass > 0)), child, chosen)
    return chosen


def doubled(coins: batched.BatchedCoins, accept: Tensor, walks: Tensor) -> tuple[Tensor, Tensor]:
    """`enter`, which gives a child up to twice the weight that it may claim."""
    return walks & (accept > 0), (2 * accept).clamp(max=1)


def unstretched(coins: batched.BatchedCoins, probability: Tensor, asks: Tensor) -> Tensor:
    """`flip`, after which what is left of its number is not uniform: an answer changes inside a box."""
    return (coins.numbers[:, 0] < probability) & asks


TWINS = [(batched, "choose", forgetful, CASES[1]), (batched, "enter", doubled, CASES[7])]
TWINS += [(batched.BatchedCoins, "flip", unstretched, CASES[0])]


@pytest.mark.parametrize(("owner", "name", "twin", "case"), TWINS)
def test_biased_walks_are_seen(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, twin: Any, case: tuple) -> None:
    monkeypatch.setattr(owner, name, twin)
    with pytest.raises(AssertionError):
        assert off(monkeypatch, *case) < (1e-12 if twin is unstretched else 1e-3)


def test_other_drafts_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert off(monkeypatch, *CASES[3], drawn_as=RECURSIVE) > 1e-3
    trees = Case(*CASES[2])
    trees.draft = trees.draft**0.5 / (trees.draft**0.5).sum(-1, keepdim=True)
    ours = first_tokens(trees.law(monkeypatch), TARGET, 2)
    assert largest_difference(ours, target_law(TARGET, 2)) > 1e-3
