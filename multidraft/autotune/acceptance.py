"""How many drafts are accepted: by their number at a node, its depth, and how sure the draft model is there."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from multidraft.decoding.tree import NodeLaw, Tree

if TYPE_CHECKING:
    from multidraft.decoding.record import StepRecord

MOST_DRAFTS, DEPTHS, CLASSES = 8, 5, 5  # drafts at a node; depths and confidences told apart, the last for all beyond
MISSED, FALL = 0.4, 0.7  # before anything is known, n drafts all miss with probability 0.4 / n^0.7
SURE = 0.998  # no acceptance is believed to be nearer to zero or one than this leaves
COUNTS, PLACES = 4, 8  # one number of drafts, and one depth or confidence, need so many times the evidence that all do

Table = Float[np.ndarray, "depths drafts classes"]


@dataclass(frozen=True)
class Rates:
    """Acceptance at a node with n drafts at depth d in confidence class c: 1 - missing[n]^(depth[d] confidence[c]).

    Powers of the chance to miss keep every acceptance in the unit interval, and serve one draft and many alike.
    `shares[n][i]` is the part of it that the i-th child of n has, in the order in which they are drawn.
    """

    missing: Float[np.ndarray, " drafts"]  # by number of drafts; of none it is one
    depth: Float[np.ndarray, " depths"]
    confidence: Float[np.ndarray, " classes"]
    shares: Float[np.ndarray, "drafts ranks"]

    @cached_property
    def table(self) -> Table:
        """The acceptance in every case."""
        return 1 - self.missing[:, None] ** (self.depth[:, None, None] * self.confidence)

    @cached_property
    def average_table(self) -> Float[np.ndarray, "depths drafts"]:
        """Acceptance by depth and number of drafts, where nothing is known of the confidence."""
        return 1 - self.missing ** self.depth[:, None]

    @cached_property
    def average(self) -> list[list[float]]:
        """The same numbers as lists, which are faster to ask one by one."""
        return self.average_table.tolist()

    @cached_property
    def parts(self) -> list[list[float]]:
        """The shares as lists."""
        return self.shares.tolist()

    @cached_property
    def cases(self) -> list[list[list[float]]]:
        """The table as lists."""
        return self.table.tolist()

    def accepted(self, drafts: int, depth: int, sure: int | None = None) -> float:
        """The acceptance of a number of drafts at a node of some depth, and of a confidence class if it is known.

        >>> round(DEFAULT.accepted(1, 0), 3)
        0.6
        """
        depth = min(depth, DEPTHS - 1)
        return self.average[depth][drafts] if sure is None else self.cases[depth][drafts][sure]

    def reaches(self, tree: Tree) -> list[float]:
        """How likely the accepted path comes through each slot."""
        reach, rank = [1.0] * len(tree), 0
        for slot, parent in enumerate(tree.parents[1:], 1):
            rank = rank + 1 if tree.parents[slot - 1] == parent else 0
            drafts = tree.drafts[parent]
            reach[slot] = reach[parent] * self.accepted(drafts, tree.depths[parent]) * self.parts[drafts][rank]
        return reach

    def tokens(self, tree: Tree) -> float:
        """Expected tokens of a step, the last one counted, which comes without drafts too."""
        return sum(self.reaches(tree))

    def eased(self, exponent: float | int) -> "Rates":
        """The rates of a text in which drafts are found more easily, by an exponent above one."""
        return replace(self, missing=self.missing**exponent)


def default() -> Rates:
    """What is assumed of a pair of which nothing is known."""
    counts = np.arange(1.0, MOST_DRAFTS + 1)
    missing = np.concatenate([[1.0], MISSED / counts**FALL])
    gains, shares = -np.diff(missing), np.zeros((MOST_DRAFTS + 1, MOST_DRAFTS))
    for drafts in range(1, MOST_DRAFTS + 1):
        shares[drafts, :drafts] = gains[:drafts] / gains[:drafts].sum()
    return Rates(missing, np.ones(DEPTHS), np.ones(CLASSES), shares)


DEFAULT = default()


@dataclass
class AcceptanceTracker:
    """What nodes claimed that walks came to, and the weights with which they were entered.

    The rule says with which probability a drafted token is accepted, so that no coin is in what is learnt.
    """

    claimed: Table = field(default_factory=lambda: np.zeros((DEPTHS, MOST_DRAFTS + 1, CLASSES)))
    weight: Table = field(default_factory=lambda: np.zeros((DEPTHS, MOST_DRAFTS + 1, CLASSES)))
    ranks: Float[np.ndarray, "drafts ranks"] = field(default_factory=lambda: np.zeros((MOST_DRAFTS + 1, MOST_DRAFTS)))

    def observe(self, record: "StepRecord", memory: float | int = float("inf")) -> None:
        """Learn from a step's verdicts; what was learnt before fades by a factor e over `memory` nodes of a row."""
        for tree, visits in zip(record.trees, record.visits, strict=True):
            for node, weight, verdict in visits:
                if drafts := tree.counts.get(node, 0):
                    place = min(tree.depths[node], DEPTHS - 1), min(drafts, MOST_DRAFTS), class_of(tree.laws[node])
                    self.add(place, weight, [child.accept for child in verdict.children])
        nodes = sum(map(len, record.visits)) / max(len(record.trees), 1)
        self.fade(np.exp(-nodes / memory))

    def add(self, place: tuple[int, int, int], weight: float | int, claims: list[float]) -> None:
        """One node."""
        self.claimed[place] += sum(claims)
        self.weight[place] += weight
        for rank, claim in enumerate(claims[:MOST_DRAFTS]):
            self.ranks[place[1], rank] += claim

    def fade(self, factor: float | int) -> None:
        """Believe less of what was learnt."""
        if factor < 1:
            for learnt in (self.claimed, self.weight, self.ranks):
                learnt *= factor

    def rates(self, prior: Rates = DEFAULT, strength: float = 8.0, rounds: int = 1) -> Rates:
        """The prior, which counts as so many nodes, corrected by what was learnt.

        First one exponent for all nodes, so that what one number of drafts shows is believed of the others, too; then
        one for each number of drafts, for each depth, and for each confidence, in as many rounds as are asked for.
        """
        found = replace(prior, missing=prior.missing ** self.exponent(prior, (0, 1, 2), strength))
        for _ in range(rounds):
            missing = found.missing ** self.exponent(found, (0, 2), COUNTS * strength)
            found = replace(found, missing=np.minimum.accumulate(missing))
            found = replace(found, depth=found.depth * self.exponent(found, (1, 2), PLACES * strength))
            found = replace(found, confidence=found.confidence * self.exponent(found, (0, 1), PLACES * strength))
        return replace(found, shares=self.shared(prior.shares, strength))

    def exponent(self, prior: Rates, axes: tuple[int, ...], strength: float) -> Float[np.ndarray, "*groups"]:
        """By which power of the chance to miss a prior explains the claims, summed over some axes; one if unseen."""
        weight, claimed = self.weight.sum(axes), self.claimed.sum(axes)
        predicted = (self.weight * prior.table).sum(axes) / np.maximum(weight, 1e-300)
        predicted = np.clip(predicted, 1 - SURE, SURE)
        seen = np.clip((claimed + strength * predicted) / (weight + strength), 1 - SURE, SURE)
        return np.where(weight > 0, np.log1p(-seen) / np.log1p(-predicted), 1.0)

    def shared(self, prior: Float[np.ndarray, "drafts ranks"], strength: float) -> Float[np.ndarray, "drafts ranks"]:
        """The shares of children, which add up to one."""
        found = self.ranks + strength * prior
        return found / np.maximum(found.sum(1, keepdims=True), 1e-300)


def class_of(law: NodeLaw) -> int:
    """The confidence class of a node, by the draft model's largest probability at temperature 1."""
    return min(int(law.confidence * CLASSES), CLASSES - 1)
