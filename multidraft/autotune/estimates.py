"""What drafts give and steps take: acceptance learnt from verdicts, and seconds fitted to steps that were timed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from multidraft.decoding.tree import NodeLaw, Tree
from multidraft.decoding.verify import Visit

if TYPE_CHECKING:
    from multidraft.decoding.record import StepRecord

MOST_DRAFTS, CLASSES = 8, 5  # drafts at a node, and confidences that are told apart
MISSED, FALL = 0.4, 0.7  # before anything is known, n drafts all miss with probability 0.4 / n^0.7,
POWERS = (0.5, 0.75, 1.0, 1.4, 2.2)  # which is raised to a power that grows with the confidence
SURE = 0.998  # no acceptance is believed to be nearer to zero or one than this leaves
COUNTS, PLACES = 4, 8  # one number of drafts, and one confidence, need so many times the evidence that all do
HINT = 0.05  # how much a guess weighs beside a measurement of seconds

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
        """Acceptance by number of drafts, of all confidences as often as they come: where none is known yet."""
        return (self.table @ self.frequency).tolist()

    @cached_property
    def by_class(self) -> list[list[float]]:
        """Acceptance by confidence and number of drafts, as lists, which are faster to ask one by one."""
        return self.table.T.tolist()

    @cached_property
    def parts(self) -> list[list[float]]:
        """The shares as lists."""
        return self.shares.tolist()

    def of(self, law: NodeLaw) -> list[float]:
        """Acceptance by number of drafts at a node with this law; what was counted says it itself."""
        return self.by_class[class_of(law)] if law.known is None else counted(law.known, self.trust)

    def tokens(self, tree: Tree) -> float:
        """Expected tokens of a step, the last one counted, which comes without drafts too."""
        reach, rank = [1.0] * len(tree), 0
        for slot, parent in enumerate(tree.parents[1:], 1):
            rank = rank + 1 if tree.parents[slot - 1] == parent else 0
            drafts = tree.drafts[parent]
            reach[slot] = reach[parent] * self.average[drafts] * self.parts[drafts][rank]
        return sum(reach)


def class_of(law: NodeLaw) -> int:
    """The confidence class of a node, by the draft model's largest probability at temperature 1."""
    return min(int(law.confidence * CLASSES), CLASSES - 1)


def counted(likely: list[float], trust: float) -> list[float]:
    """Acceptance by number of drafts where the tokens are said to be so likely."""
    whole = [0.0, *accumulate(likely), *[sum(likely)] * (MOST_DRAFTS - len(likely))]
    return [min(trust * each, SURE) for each in whole]


def default() -> Rates:
    """What is assumed of a pair of which nothing is known."""
    missing = np.concatenate([[1.0], MISSED / np.arange(1.0, MOST_DRAFTS + 1) ** FALL])
    gains = np.tril(np.tile(-np.diff(missing), (MOST_DRAFTS + 1, 1)), -1)
    return Rates(missing, np.array(POWERS), in_parts(gains), np.full(CLASSES, 1 / CLASSES))


def in_parts(gains: Float[np.ndarray, "drafts ranks"]) -> Float[np.ndarray, "drafts ranks"]:
    """Every line in parts of its sum."""
    return gains / np.maximum(gains.sum(1, keepdims=True), 1e-300)


DEFAULT = default()


@dataclass
class AcceptanceTracker:
    """What nodes claimed that walks came to, and the weights with which they were entered: a moving average.

    The rule says with which probability a drafted token is accepted, so that no coin is in what is learnt. What was
    looked up or counted says itself how likely it is right; of that it is learnt how far to trust it.
    """

    claimed: Table = field(default_factory=partial(np.zeros, (MOST_DRAFTS + 1, CLASSES)))
    weight: Table = field(default_factory=partial(np.zeros, (MOST_DRAFTS + 1, CLASSES)))
    ranks: Float[np.ndarray, "drafts ranks"] = field(default_factory=partial(np.zeros, (MOST_DRAFTS + 1, MOST_DRAFTS)))
    roots: Float[np.ndarray, " classes"] = field(default_factory=partial(np.zeros, CLASSES))
    counts: Float[np.ndarray, "2"] = field(default_factory=partial(np.zeros, 2))  # what was counted: came, and said

    @property
    def nodes(self) -> float:
        """How many were learnt from."""
        return float(self.weight.sum() + self.counts[1])

    def observe(self, record: "StepRecord", memory: float | int = float("inf")) -> None:
        """Learn from a step's verdicts; what was learnt before fades by a factor e over `memory` nodes of a row."""
        visits = [[event for event in events if isinstance(event, Visit)] for events in record.events]
        for tree, own in zip(record.trees, visits, strict=True):
            if 0 in tree.laws and tree.laws[0].known is None:
                self.roots[class_of(tree.laws[0])] += 1
            for node, weight, verdict in own:
                drafts = min(tree.counts.get(node, 0), MOST_DRAFTS)
                claims = [0.0] * drafts
                for child in verdict.children if drafts else ():  # those without a claim are left out
                    claims[min(tree.rank(child.node), drafts - 1)] += child.accept
                if drafts and (likely := tree.laws[node].known) is not None:
                    self.counts += sum(claims), weight * counted(likely, 1.0)[drafts]
                elif drafts:
                    self.add((drafts, class_of(tree.laws[node])), weight, claims)
        self.fade(np.exp(-sum(map(len, visits)) / len(record.trees) / memory))

    def add(self, place: tuple[int, int], weight: float | int, claims: list[float]) -> None:
        """One node, with so many drafts and of such a class."""
        self.claimed[place] += sum(claims)
        self.weight[place] += weight
        self.ranks[place[0], : len(claims)] += claims[:MOST_DRAFTS]

    def fade(self, factor: float | int) -> None:
        """Believe less of what was learnt."""
        if factor < 1:
            for learnt in vars(self).values():
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
        trust = (self.counts[0] + strength * prior.trust) / (self.counts[1] + strength)
        shares = in_parts(self.ranks + strength * prior.shares)
        return replace(found, shares=shares, frequency=frequency, trust=float(trust))

    def exponent(self, prior: Rates, axes: tuple[int, ...], strength: float) -> Float[np.ndarray, "*groups"]:
        """By which power of the chance to miss a prior explains the claims, summed over some axes; one if unseen."""
        weight, claimed = self.weight.sum(axes), self.claimed.sum(axes)
        predicted = (self.weight * prior.table).sum(axes) / np.maximum(weight, 1e-300)
        predicted = np.clip(predicted, 1 - SURE, SURE)
        seen = np.clip((claimed + strength * predicted) / (weight + strength), 1 - SURE, SURE)
        return np.where(weight > 0, np.log1p(-seen) / np.log1p(-predicted), 1.0)


class Work(NamedTuple):
    """What a step has done for each row; rows are as wide as the widest."""

    levels: float | int  # on which a draft model was asked
    reads: float | int  # nodes that it read
    nodes: float | int  # that were drafted

    @classmethod
    def of_tree(cls, tree: Tree) -> "Work":
        """A step with one tree in every row."""
        return cls(tree.depth, sum(drafts > 0 for drafts in tree.drafts), len(tree) - 1)


class Timed(NamedTuple):
    """A step that was timed: its work, and the seconds of its parts for all rows."""

    levels: float | int
    reads: float | int
    nodes: float | int
    draft: float | int
    target: float | int
    rest: float | int

    @property
    def own(self) -> float | int:
        """Seconds beside those of a draft model: drafting counts where no model was asked."""
        return self.target + self.rest + (0.0 if self.levels else self.draft)


@dataclass(frozen=True)
class Costs:
    """Seconds of a step with a certain number of rows, for all of them together, and of what it does for each row."""

    plain: float | int  # a step that drafts nothing
    first: float | int  # one that drafts, beside what follows; its pass may be much dearer than one over one token
    node: float | int  # every drafted node
    level: float | int = 0.0  # every level on which a draft model is asked
    read: float | int = 0.0  # every node that it reads

    def seconds(self, work: Work) -> float | int:
        """A whole step."""
        own = self.first + self.node * work.nodes if work.nodes else self.plain
        return self.level * work.levels + self.read * work.reads + own

    def scaled(self, share: float | int) -> "Costs":
        """The costs with so many times the rows: more rows are as many more tokens in every pass."""
        more, plain = share - 1, self.plain if share <= 1 else max(self.plain, self.first)
        passes = plain + more * self.node, self.first + more * self.node
        return Costs(*passes, share * self.node, self.level, share * self.read)


def fitted(samples: Mapping[str, Sequence[Timed]]) -> Costs:
    """The costs that explain the seconds of steps best, of which alike ones stand together; some must have no drafts.

    Of alike steps the lower quartile counts: other work on the machine only adds. Drafts never make a step cheaper. If
    nothing else is known, the first node is as dear as the others, and reading a node is of a draft model's pass what a
    node is of the target's.
    """
    typical = [Timed(*(sorted(own)[len(own) // 4] for own in zip(*runs, strict=True))) for runs in samples.values()]
    plain = min(one.own for one in typical if not one.nodes)
    more, node = explained([((1, one.nodes), one.own) for one in typical if one.nodes], (1, 0), plain)
    level, read = explained([(one[:2], one.draft) for one in typical if one.levels], (node, -plain - more))
    return Costs(plain, plain + more, node, level, read)


def explained(
    cases: Sequence[tuple[Sequence[float | int], float | int]], hint: Sequence[float | int], base: float | int = 0.0
) -> tuple[float, float]:
    """Two numbers, none below zero, whose sums in these shares and a base come nearest to the seconds, in proportion.

    A case has two shares and seconds. The hint is a combination of the two numbers that is zero if nothing is known.
    """
    if not cases:
        return 0.0, 0.0
    shares, seconds = np.array([own for own, _ in cases], dtype=float), np.array([own for _, own in cases])
    seconds = np.maximum(seconds, 1e-9)
    guess = HINT / seconds.mean() * np.array([hint]) / (np.abs(hint).sum() + 1e-300)
    rows, wanted = np.concatenate([shares / seconds[:, None], guess]), np.append(1 - base / seconds, 0.0)
    both = np.linalg.lstsq(rows, wanted, rcond=None)[0]
    if both.min() < 0:  # then the other one alone
        kept, found = int(both.argmax()), np.zeros(2)
        found[kept] = max(rows[:, kept] @ wanted / (rows[:, kept] @ rows[:, kept]), 0.0)
        both = found
    return float(both[0]), float(both[1])
