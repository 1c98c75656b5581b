"""Estimates: acceptance rates learnt from verdicts, and costs in seconds fitted to timed steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from multidraft.decoding.record import Visit
from multidraft.decoding.tree import NodeLaw, Tree

if TYPE_CHECKING:
    from multidraft.decoding.record import StepRecord

MAX_DRAFTS, CLASSES = 8, 5  # the most drafts at a node; classes of the draft model's confidence
MISS_PROBABILITY, MISS_EXPONENT = 0.4, 0.7  # prior: n drafts all miss with probability 0.4 / n^0.7
CLASS_POWERS = (0.5, 0.75, 1.0, 1.4, 2.2)  # prior: the power of that probability, by confidence class
MAX_ACCEPTANCE = 0.998  # estimates of acceptance stay between 1 - this and this
EVIDENCE_PER_COUNT, EVIDENCE_PER_CLASS = 4, 8  # prior strength of one number of drafts, of one class: times that of all
MIN_RUNS = 3  # of steps with equal work, from which on their seconds are taken as they are
HINT_WEIGHT = 0.05  # weight of the hint beside one measured step

RateTable = Float[np.ndarray, "drafts classes"]


@dataclass(frozen=True)
class TreeRates:
    """Acceptance at a node with n drafts in confidence class c: 1 - missing[n]^confidence[c].

    Powers of the probability to miss keep every acceptance in the unit interval, for one draft and for many.
    `shares[n][i]` is the share of the i-th of n children, in the order in which they are drawn. `frequency[c]` is how
    often the root of a tree has class c.
    """

    missing: Float[np.ndarray, " drafts"]  # by number of drafts; 1 for none
    confidence: Float[np.ndarray, " classes"]
    shares: Float[np.ndarray, "drafts ranks"]
    frequency: Float[np.ndarray, " classes"]
    trust: float = 1.0  # of probabilities that a lookup reports: how often it is right, over how often it says so

    @cached_property
    def table(self) -> RateTable:
        """Acceptance by number of drafts and confidence class."""
        return 1 - self.missing[:, None] ** self.confidence

    @cached_property
    def average(self) -> list[float]:
        """Acceptance by number of drafts, averaged over classes: for nodes whose class is not known yet."""
        return (self.table @ self.frequency).tolist()

    @cached_property
    def by_class(self) -> list[list[float]]:
        """Acceptance by class and number of drafts, as lists, which are faster to index than arrays."""
        return self.table.T.tolist()

    @cached_property
    def share_lists(self) -> list[list[float]]:
        """The shares as lists."""
        return self.shares.tolist()

    def of(self, law: NodeLaw) -> list[float]:
        """Acceptance by number of drafts at a node; a lookup reports its own probabilities."""
        known = law.known_probs
        return self.by_class[class_of(law)] if known is None else acceptance_of_known(known, self.trust)

    def tokens(self, tree: Tree) -> float:
        """Expected tokens of a step, with the one that a step without drafts emits too."""
        reach, rank = [1.0] * len(tree), 0
        for slot, parent in enumerate(tree.parents[1:], 1):
            rank = rank + 1 if tree.parents[slot - 1] == parent else 0
            drafts = tree.drafts[parent]
            reach[slot] = reach[parent] * self.average[drafts] * self.share_lists[drafts][rank]
        return sum(reach)


def class_of(law: NodeLaw) -> int:
    """The confidence class of a node, by the draft model's largest probability at temperature 1."""
    return min(int(law.confidence * CLASSES), CLASSES - 1)


def acceptance_of_known(probabilities: list[float], trust: float) -> list[float]:
    """Acceptance by number of drafts if a lookup reports these probabilities of its tokens."""
    totals = [0.0, *accumulate(probabilities), *[sum(probabilities)] * (MAX_DRAFTS - len(probabilities))]
    return [min(trust * total, MAX_ACCEPTANCE) for total in totals]


def default() -> TreeRates:
    """The prior: acceptance of a pair that was never measured."""
    missing = np.concatenate([[1.0], MISS_PROBABILITY / np.arange(1.0, MAX_DRAFTS + 1) ** MISS_EXPONENT])
    gains = np.tril(np.tile(-np.diff(missing), (MAX_DRAFTS + 1, 1)), -1)
    return TreeRates(missing, np.array(CLASS_POWERS), shares_of(gains), np.full(CLASSES, 1 / CLASSES))


def shares_of(gains: Float[np.ndarray, "drafts ranks"]) -> Float[np.ndarray, "drafts ranks"]:
    """Every row divided by its sum."""
    return gains / np.maximum(gains.sum(1, keepdims=True), 1e-300)


DEFAULT = default()


@dataclass
class AcceptanceTracker:
    """A moving average over the nodes that walks visited: accepted probability, and the weight of the visit.

    The rule gives the probability that a drafted token is accepted, so no random draw enters the average. A lookup
    reports its own probabilities; for these the tracker learns how far to trust them.
    """

    claimed: RateTable = field(default_factory=partial(np.zeros, (MAX_DRAFTS + 1, CLASSES)))
    weight: RateTable = field(default_factory=partial(np.zeros, (MAX_DRAFTS + 1, CLASSES)))
    ranks: Float[np.ndarray, "drafts ranks"] = field(default_factory=partial(np.zeros, (MAX_DRAFTS + 1, MAX_DRAFTS)))
    roots: Float[np.ndarray, " classes"] = field(default_factory=partial(np.zeros, CLASSES))
    counts: Float[np.ndarray, "2"] = field(default_factory=partial(np.zeros, 2))  # of lookups: accepted, and reported

    @property
    def nodes(self) -> float:
        """The total weight of the nodes learnt from."""
        return float(self.weight.sum() + self.counts[1])

    def observe(
        self, record: "StepRecord", memory: float | int = float("inf"), rows: Sequence[int] | None = None
    ) -> None:
        """Learn from a step's verdicts in `rows`, all by default.

        Older ones fade by a factor e over `memory` nodes of each of them, whether it drafts or not.
        """
        if not any(tree.laws for tree in record.trees):  # nothing was asked, as in most steps of some runs
            return
        rows = range(len(record.trees)) if rows is None else rows
        visits = [[event for event in record.events[row] if isinstance(event, Visit)] for row in rows]
        for tree, row_visits in zip([record.trees[row] for row in rows], visits, strict=True):
            if 0 in tree.laws and tree.laws[0].known_probs is None:
                self.roots[class_of(tree.laws[0])] += 1
            for node, weight, verdict in row_visits:
                drafts = min(tree.counts.get(node, 0), MAX_DRAFTS)
                accept_masses = [0.0] * drafts
                for child in verdict.children if drafts else ():  # children with zero mass are left out
                    accept_masses[min(tree.ranks[child.node], drafts - 1)] += child.accept
                if drafts and (probabilities := tree.laws[node].known_probs) is not None:
                    self.counts += sum(accept_masses), weight * acceptance_of_known(probabilities, 1.0)[drafts]
                elif drafts:
                    self.add((drafts, class_of(tree.laws[node])), weight, accept_masses)
        self.fade(np.exp(-sum(map(len, visits)) / len(visits) / memory))

    def add(self, cell: tuple[int, int], weight: float | int, accept_masses: list[float]) -> None:
        """Add one node; `cell` is its number of drafts and its confidence class."""
        self.claimed[cell] += sum(accept_masses)
        self.weight[cell] += weight
        self.ranks[cell[0], : len(accept_masses)] += accept_masses[:MAX_DRAFTS]

    def fade(self, factor: float | int) -> None:
        """Multiply all weights by a factor below 1."""
        if factor < 1:
            for table in vars(self).values():
                table *= factor

    def rates(self, prior: TreeRates = DEFAULT, strength: float = 8.0, rounds: int = 1) -> TreeRates:
        """The prior, which counts as `strength` nodes, corrected by the visited nodes.

        First comes one exponent for all nodes, so that evidence on one number of drafts carries over to the others.
        Then every number of drafts and every confidence class gets its own exponent, in so many rounds.
        """
        frequency = (self.roots + strength * prior.frequency) / (self.roots.sum() + strength)
        trust = (self.counts[0] + strength * prior.trust) / (self.counts[1] + strength)
        shares = shares_of(self.ranks + strength * prior.shares)
        rates = replace(prior, shares=shares, frequency=frequency, trust=float(trust))
        if not self.weight.any():  # look-ups alone
            return rates
        rates = replace(rates, missing=prior.missing ** self.exponent(prior, (0, 1), strength))
        for _ in range(rounds):
            missing = rates.missing ** self.exponent(rates, (1,), EVIDENCE_PER_COUNT * strength)
            rates = replace(rates, missing=np.minimum.accumulate(missing))
            rates = replace(
                rates, confidence=rates.confidence * self.exponent(rates, (0,), EVIDENCE_PER_CLASS * strength)
            )
        return rates

    def exponent(self, prior: TreeRates, axes: tuple[int, ...], strength: float) -> Float[np.ndarray, "*groups"]:
        """The power of the prior's miss probability that fits the visits, summed over axes; 1 where there are none."""
        weight, claimed = self.weight.sum(axes), self.claimed.sum(axes)
        predicted = (self.weight * prior.table).sum(axes) / np.maximum(weight, 1e-300)
        predicted = np.clip(predicted, 1 - MAX_ACCEPTANCE, MAX_ACCEPTANCE)
        corrected = np.clip((claimed + strength * predicted) / (weight + strength), 1 - MAX_ACCEPTANCE, MAX_ACCEPTANCE)
        return np.where(weight > 0, np.log1p(-corrected) / np.log1p(-predicted), 1.0)


class Work(NamedTuple):
    """The work of a step for each row; rows are padded to the widest."""

    levels: float | int  # that a draft model read
    reads: float | int  # nodes that the draft model read
    nodes: float | int  # drafted nodes

    @classmethod
    def of_tree(cls, tree: Tree) -> "Work":
        """A step with one tree in every row."""
        return cls(tree.depth, sum(drafts > 0 for drafts in tree.drafts), len(tree) - 1)


class Timed(NamedTuple):
    """A timed step: its work, and the seconds of its parts for all rows."""

    levels: float | int
    reads: float | int
    nodes: float | int
    draft: float | int
    target: float | int
    rest: float | int

    @property
    def beside_model(self) -> float | int:
        """Seconds without the draft model's; drafting by lookup counts here."""
        return self.target + self.rest + (0.0 if self.levels else self.draft)


@dataclass(frozen=True)
class Costs:
    """Seconds of a step with a fixed number of rows, for all rows together.

    On a line by drafted nodes, and beside it by what passes took that were timed without a draft model: kernels take
    eight or sixteen tokens at once, so that some numbers are far dearer, or cheaper, than a line has them.
    """

    plain: float | int  # a step without drafts
    first: float | int  # a step with drafts, without the items below: passes over several tokens cost more
    node: float | int  # per drafted node
    level: float | int = 0.0  # per level that a draft model reads
    read: float | int = 0.0  # per node that it reads
    beside_line: tuple[tuple[float | int, float], ...] = ()  # by drafted nodes: the seconds beyond the line's

    def seconds(self, work: Work) -> float | int:
        """The seconds of a step that does this work."""
        return self.level * work.levels + self.read * work.reads + self.plain + self.drafted_seconds(work.nodes)

    def drafted_seconds(self, nodes: float | int) -> float | int:
        """What so many drafted nodes add to a plain step, without the draft model's work; between those timed a line.

        >>> costs = Costs(50.0, 55.0, 10.0, beside_line=((1, 0.0), (7, 60.0), (15, 20.0)))
        >>> [costs.drafted_seconds(nodes) for nodes in (0, 1, 4, 7, 15, 16)]
        [0.0, 15.0, 75.0, 135.0, 175.0, 185.0]
        """
        return self.drafted_seconds_of([nodes])[0] if nodes else 0.0

    def drafted_seconds_of(self, counts: Sequence[float | int]) -> list[float]:
        """The same for several numbers of nodes, at least one each."""
        places, seconds = zip(*self.beside_line or ((0, 0.0),), strict=True)
        beside = np.interp(counts, places, seconds)
        return np.maximum(self.first - self.plain + self.node * np.asarray(counts) + beside, 0.0).tolist()

    def with_plain(self, plain: float | int) -> "Costs":
        """The costs where a plain step takes so long; drafts make it longer by as much as before."""
        return replace(self, plain=plain, first=plain + self.first - self.plain)

    def scale_rows(self, factor: float | int) -> "Costs":
        """The costs with `factor` times the rows, which put that many times the tokens into every pass.

        A plain step of fewer rows takes at least its share.
        """
        plain = self.plain if factor <= 1 else max(self.plain, self.first)
        extra = max((factor - 1) * self.node, min(factor - 1, 0) * plain)
        step_costs = plain + extra, self.first + extra
        timed = tuple(((nodes + 1) / factor - 1, seconds) for nodes, seconds in self.beside_line)  # as many tokens
        return Costs(*step_costs, factor * self.node, self.level, factor * self.read, timed)


DEFAULT_COSTS = Costs(1.0, 1.1, 0.03, 0.15, 0.01)  # prior, in passes of the target


def fit_costs(samples: Mapping[str, Sequence[Timed]]) -> Costs:
    """The costs that fit the seconds of timed steps best; `samples` groups steps with equal work.

    Some steps must have no drafts. Each group counts with its lower quartile, because other work on the machine only
    adds seconds. Drafts never make a step cheaper. Without other evidence the first node costs as much as the others,
    and a node has the same share of the draft model's pass as of the target's.
    """
    groups = samples.values()
    steps = [Timed(*map(lower_quartile, zip(*runs, strict=True))) for runs in groups]
    plain = min(step.beside_model for step in steps if not step.nodes)
    first, node = fit_two_costs([((1, step.nodes), step.beside_model) for step in steps if step.nodes], (1, 0), plain)
    level, read = fit_two_costs([(step[:2], step.draft) for step in steps if step.levels], (node, -plain - first))
    looked_up = [(step, runs) for step, runs in zip(steps, groups, strict=True) if step.nodes and not step.levels]
    beside_line = sorted(
        (float(step.nodes), step.beside_model - plain - first - node * step.nodes)
        for step, runs in looked_up
        if len(runs) >= MIN_RUNS
    )
    return Costs(plain, plain + first, node, level, read, tuple(beside_line))


def lower_quartile(seconds: Sequence[float | int]) -> float | int:
    """What steps take that nothing else has slowed down.

    >>> lower_quartile([3.0, 9.0, 1.0, 2.0])
    2.0
    """
    return sorted(seconds)[len(seconds) // 4]


def fit_two_costs(
    cases: Sequence[tuple[Sequence[float | int], float | int]], hint: Sequence[float | int], base: float | int = 0.0
) -> tuple[float, float]:
    """Two costs, neither below zero, that fit the seconds of cases best by relative least squares.

    A case has two amounts and its seconds, which should equal `base` plus the amounts times the costs. The hint is a
    combination of the two costs that is taken to be zero where the cases do not decide it.
    """
    if not cases:
        return 0.0, 0.0
    amounts = np.array([amounts for amounts, _ in cases], dtype=float)
    seconds = np.array([seconds for _, seconds in cases])
    seconds = np.maximum(seconds, 1e-9)
    hint_row = HINT_WEIGHT / seconds.mean() * np.array([hint]) / (np.abs(hint).sum() + 1e-300)
    equations, goals = np.concatenate([amounts / seconds[:, None], hint_row]), np.append(1 - base / seconds, 0.0)
    solution = np.linalg.lstsq(equations, goals, rcond=None)[0]
    if solution.min() < 0:  # then the other cost alone
        index, alone = int(solution.argmax()), np.zeros(2)
        alone[index] = max(equations[:, index] @ goals / (equations[:, index] @ equations[:, index]), 0.0)
        solution = alone
    return float(solution[0]), float(solution[1])
