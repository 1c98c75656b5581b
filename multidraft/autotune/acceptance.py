"""How many drafts are accepted: by their number at a node, and by how sure the draft model is there."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from multidraft.decoding.tree import NodeLaw, Tree

if TYPE_CHECKING:
    from multidraft.decoding.record import StepRecord

MOST_DRAFTS, CLASSES = 8, 5  # drafts at a node, and confidences that are told apart
MISSED, FALL = 0.4, 0.7  # before anything is known, n drafts all miss with probability 0.4 / n^0.7,
POWERS = (0.5, 0.75, 1.0, 1.4, 2.2)  # which is raised to a power that grows with the confidence
SURE = 0.998  # no acceptance is believed to be nearer to zero or one than this leaves
COUNTS, PLACES = 4, 8  # one number of drafts, and one confidence, need so many times the evidence that all do

Table = Float[np.ndarray, "drafts classes"]


@dataclass(frozen=True)
class Rates:
    """Acceptance at a node with n drafts in confidence class c: 1 - missing[n]^confidence[c].

    Powers of the chance to miss keep every acceptance in the unit interval, and serve one draft and many alike.
    `shares[n][i]` is the part of it that the i-th child of n has, in the order in which they are drawn, and
    `frequency[c]` how often the root of a tree is of a class.
    """

    missing: Float[np.ndarray, " drafts"]  # by number of drafts; of none it is one
    confidence: Float[np.ndarray, " classes"]
    shares: Float[np.ndarray, "drafts ranks"]
    frequency: Float[np.ndarray, " classes"]
    trust: float = 1.0  # how often what was counted is right, beside how often it says so

    @cached_property
    def table(self) -> Table:
        """The acceptance in every case."""
        return 1 - self.missing[:, None] ** self.confidence

    @cached_property
    def average(self) -> list[float]:
        """Acceptance by number of drafts, where nothing is known of the confidence."""
        return (1 - self.missing).tolist()

    @cached_property
    def by_class(self) -> list[list[float]]:
        """Acceptance by confidence and number of drafts, as lists, which are faster to ask one by one."""
        return self.table.T.tolist()

    @cached_property
    def parts(self) -> list[list[float]]:
        """The shares as lists."""
        return self.shares.tolist()

    def of(self, law: NodeLaw | None) -> list[float]:
        """Acceptance by number of drafts at a node with this law, if it is known; what was counted says it itself."""
        if law is None:
            return self.average
        return self.by_class[class_of(law)] if law.known is None else counted(law.known, self.trust)

    def accepted(self, drafts: int) -> float:
        """The acceptance of a number of drafts at any node.

        >>> round(DEFAULT.accepted(1), 3)
        0.6
        """
        return self.average[drafts]

    def tokens(self, tree: Tree) -> float:
        """Expected tokens of a step, the last one counted, which comes without drafts too."""
        reach, rank = [1.0] * len(tree), 0
        for slot, parent in enumerate(tree.parents[1:], 1):
            rank = rank + 1 if tree.parents[slot - 1] == parent else 0
            drafts = tree.drafts[parent]
            reach[slot] = reach[parent] * self.accepted(drafts) * self.parts[drafts][rank]
        return sum(reach)


def counted(likely: list[float], trust: float) -> list[float]:
    """Acceptance by number of drafts where the tokens are said to be so likely."""
    whole = [0.0, *accumulate(likely), *[sum(likely)] * (MOST_DRAFTS - len(likely))]
    return [min(trust * each, SURE) for each in whole]


def default() -> Rates:
    """What is assumed of a pair of which nothing is known."""
    counts = np.arange(1.0, MOST_DRAFTS + 1)
    missing = np.concatenate([[1.0], MISSED / counts**FALL])
    gains, shares = -np.diff(missing), np.zeros((MOST_DRAFTS + 1, MOST_DRAFTS))
    for drafts in range(1, MOST_DRAFTS + 1):
        shares[drafts, :drafts] = gains[:drafts] / gains[:drafts].sum()
    return Rates(missing, np.array(POWERS), shares, np.full(CLASSES, 1 / CLASSES))


DEFAULT = default()


@dataclass
class AcceptanceTracker:
    """What nodes claimed that walks came to, and the weights with which they were entered: a moving average.

    The rule says with which probability a drafted token is accepted, so that no coin is in what is learnt. What was
    looked up or counted says itself how likely it is right; of that it is learnt how far to trust it.
    """

    claimed: Table = field(default_factory=lambda: np.zeros((MOST_DRAFTS + 1, CLASSES)))
    weight: Table = field(default_factory=lambda: np.zeros((MOST_DRAFTS + 1, CLASSES)))
    ranks: Float[np.ndarray, "drafts ranks"] = field(default_factory=lambda: np.zeros((MOST_DRAFTS + 1, MOST_DRAFTS)))
    roots: Float[np.ndarray, " classes"] = field(default_factory=lambda: np.zeros(CLASSES))
    counts: Float[np.ndarray, "2"] = field(
        default_factory=lambda: np.zeros(2)
    )  # claims of what was counted: came, said

    def observe(self, record: "StepRecord", memory: float | int = float("inf")) -> None:
        """Learn from a step's verdicts; what was learnt before fades by a factor e over `memory` nodes of a row."""
        for tree, visits in zip(record.trees, record.visits, strict=True):
            if 0 in tree.laws and tree.laws[0].known is None:
                self.roots[class_of(tree.laws[0])] += 1
            for node, weight, verdict in visits:
                drafts, claims = min(tree.counts.get(node, 0), MOST_DRAFTS), [own.accept for own in verdict.children]
                if drafts and (likely := tree.laws[node].known) is not None:
                    self.counts += sum(claims), weight * counted(likely, 1.0)[drafts]
                elif drafts:
                    self.add((drafts, class_of(tree.laws[node])), weight, claims)
        nodes = sum(map(len, record.visits)) / max(len(record.trees), 1)
        self.fade(np.exp(-nodes / memory))

    def add(self, place: tuple[int, int], weight: float | int, claims: list[float]) -> None:
        """One node."""
        self.claimed[place] += sum(claims)
        self.weight[place] += weight
        for rank, claim in enumerate(claims[:MOST_DRAFTS]):
            self.ranks[place[0], rank] += claim

    def fade(self, factor: float | int) -> None:
        """Believe less of what was learnt."""
        if factor < 1:
            for learnt in (self.claimed, self.weight, self.ranks, self.roots, self.counts):
                learnt *= factor

    def rates(self, prior: Rates = DEFAULT, strength: float = 8.0, rounds: int = 1) -> Rates:
        """The prior, which counts as so many nodes, corrected by what was learnt.

        First one exponent for all nodes, so that what one number of drafts shows is believed of the others, too; then
        one for each number of drafts, and for each confidence, in as many rounds as are asked for.
        """
        found = replace(prior, missing=prior.missing ** self.exponent(prior, (0, 1), strength))
        for _ in range(rounds):
            missing = found.missing ** self.exponent(found, (1,), COUNTS * strength)
            found = replace(found, missing=np.minimum.accumulate(missing))
            found = replace(found, confidence=found.confidence * self.exponent(found, (0,), PLACES * strength))
        frequency = (self.roots + strength * prior.frequency) / (self.roots.sum() + strength)
        ranks = self.ranks + strength * prior.shares
        shares = ranks / np.maximum(ranks.sum(1, keepdims=True), 1e-300)
        trust = (self.counts[0] + strength * prior.trust) / (self.counts[1] + strength)
        return replace(found, shares=shares, frequency=frequency, trust=float(trust))

    def exponent(self, prior: Rates, axes: tuple[int, ...], strength: float) -> Float[np.ndarray, "*groups"]:
        """By which power of the chance to miss a prior explains the claims, summed over some axes; one if unseen."""
        weight, claimed = self.weight.sum(axes), self.claimed.sum(axes)
        predicted = (self.weight * prior.table).sum(axes) / np.maximum(weight, 1e-300)
        predicted = np.clip(predicted, 1 - SURE, SURE)
        seen = np.clip((claimed + strength * predicted) / (weight + strength), 1 - SURE, SURE)
        return np.where(weight > 0, np.log1p(-seen) / np.log1p(-predicted), 1.0)


def class_of(law: NodeLaw) -> int:
    """The confidence class of a node, by the draft model's largest probability at temperature 1."""
    return min(int(law.confidence * CLASSES), CLASSES - 1)
