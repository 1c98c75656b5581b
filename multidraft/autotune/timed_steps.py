"""Which steps of a run are timed for a pair's profile, and the trees that are drafted in order to be timed."""

import math
from collections import Counter, deque
from typing import TYPE_CHECKING

from multidraft.autotune.estimates import Timed, Work, lower_quartile
from multidraft.autotune.limits import TreeLimits
from multidraft.autotune.plans import MAX_SAMPLES, MIN_STEPS, Profile, how_often, save
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.tree import NO_DRAFTS, TokenTree, Tree
from multidraft.errors import say_once
from multidraft.models.reader import Cost

if TYPE_CHECKING:
    from multidraft.decoding.record import StepRecord

TIME_PLAIN_EVERY, PLAIN_IN_A_ROW = 16, 2  # so many of so many steps have no drafts, until enough of these were timed
CHAINS_TO_TIME = (1, 3, 7, 15, 31)  # look-ups, with whose roots passes have 2, 4, .. 32 tokens; each twice as long
CHAIN_STEPS, MAX_CHAIN_TRIES = range(4, 8), 8  # of so many steps; of one length, where shorter ones may be found
LOOKUP_TREE, MODEL_TREE = Tree.levels([1] * 3), Tree.parse("1x6")  # timed first; the second needs two draft passes
MAX_LEARNT_NODES = 1000.0  # a profile learns acceptance from so many nodes
LATEST_STEPS = range(8, 17)  # without drafts, that tell how fast the machine is now
MAX_SLOWNESS = 10.0  # or its inverse: beyond it the clock is wrong
SAVE_SECONDS = 2.0  # a profile is written after so many seconds of timed steps
TIMING_NOTE = (
    "timing the steps of this pair while it decodes, for at most %g s %s (--tune-budget 0, from Python tune_budget=0, "
    "does without)"
)
NO_WORK = Work(0, 0, 0)  # a step without drafts


class TimedSteps:
    """The steps that a profile learns from, until `budget` seconds of them have been timed; with 0 it reads no clock.

    A new pair begins with some steps without drafts and some with a first tree. Later come more without, and of
    look-ups chains of several lengths.
    """

    def __init__(self, profile: Profile, kind: Cost, budget: float | int, limits: TreeLimits):
        self.profile, self.kind, self.budget = profile, kind, budget
        self.without_drafts = StaticTree(NO_DRAFTS)
        self.first_tree = StaticTree(tree_within(limits, LOOKUP_TREE if kind == "lookup" else MODEL_TREE))
        lengths = [n for n in CHAINS_TO_TIME if kind == "lookup" and n <= min(limits.nodes, limits.depth)]
        self.chains = {length: StaticTree(Tree.levels([1] * length)) for length in lengths}
        self.steps_with_tree = Counter[tuple[int, int, StaticTree]]()  # by restarts of the profile, rows
        self.longest_right = 0  # drafts of a row that were right one after another
        self.has_said = False  # that steps are timed
        self.has_drafted: bool | None = None  # in the last step
        self.latest_rows, self.latest = 0, deque[float](maxlen=LATEST_STEPS[-1])  # steps without drafts: their seconds
        self.unsaved_seconds = 0.0

    @property
    def has_costs(self) -> bool:
        """Whether steps have been timed, or none may be, so that the prior's costs hold."""
        return bool(self.profile.timed_rows) or not self.budget

    @property
    def is_busy(self) -> bool:
        """Whether the machine was busy when steps were timed, or is now."""
        return self.profile.has_busy_steps or self.profile.is_disturbed

    def is_settled(self, rows: int) -> bool:
        """Whether costs are known and steps with so many rows not timed any more; the first ones are often too slow."""
        is_timed = self.profile.step_count(rows, False) >= MAX_SAMPLES or self.profile.spent_near(rows) >= self.budget
        return is_timed and bool(self.profile.timed_rows)

    def say(self, rows: int) -> None:
        """Say once that steps with so many rows are timed, if the budget is not spent."""
        if not self.has_said and self.profile.spent_near(rows) < self.budget < math.inf:
            say_once(TIMING_NOTE, self.budget, how_often(self.profile))
            self.has_said = True

    def first_tree_for(self, rows: int) -> StaticTree:
        """What a new pair drafts, of which nothing is known; where its steps cannot be timed, tries come to an end."""
        has_plain_steps, tries = self.profile.step_count(rows, False) >= MIN_STEPS, self.tries(rows, self.first_tree)
        return self.first_tree if has_plain_steps and tries < 2 * MIN_STEPS else self.without_drafts

    def tree_for(self, rows: int, step: int) -> StaticTree | None:
        """What is drafted in a later step only to be timed, if anything is."""
        place = step % TIME_PLAIN_EVERY
        is_due = place >= TIME_PLAIN_EVERY - PLAIN_IN_A_ROW and self.profile.step_count(rows, False) < MAX_SAMPLES
        tree = self.chain_for(rows) if place in CHAIN_STEPS else self.without_drafts if is_due else None
        return tree if tree and self.may_time(rows) else None

    def may_time(self, rows: int) -> bool:
        """Whether steps with so many rows may be timed now."""
        return self.profile.spent_near(rows) < self.budget and not self.profile.is_disturbed

    def chain_for(self, rows: int) -> StaticTree | None:
        """The shortest chain of look-ups whose pass is to be timed; of one row alone, from which others are scaled.

        A longer one where a shorter one has been right to its end: of most texts none ever is.
        """
        for length, chain in self.chains.items() if rows == 1 and self.may_time(rows) else ():
            if length > 2 * self.longest_right + 1:
                return None
            if self.profile.chain_count(rows, length) < MIN_STEPS and self.tries(rows, chain) < MAX_CHAIN_TRIES:
                return chain
        return None

    def tries(self, rows: int, tree: StaticTree) -> int:
        """How many steps with so many rows drafted a tree to time it, since the profile began anew."""
        return self.steps_with_tree[self.profile.restarts, rows, tree]

    def observe(self, record: "StepRecord", work: Work, tree: StaticTree | None, is_new_pair: bool) -> None:
        """Learn from a step, in which a tree may have been drafted to be timed; write the profile from time to time."""
        rows, is_seeded = len(record.trees), any(row_tree.is_seeded for row_tree in record.trees)
        if work is not NO_WORK:
            self.longest_right = max(self.longest_right, *(len(emission.tokens) - 1 for emission in record.emitted))
        if tree is not None and not is_seeded and work.nodes and not record.is_catching_up:
            self.steps_with_tree[self.profile.restarts, rows, tree] += 1
        if self.budget and not is_seeded:
            counts = self.counts(rows, bool(work.nodes), is_new_pair)
            added_seconds = note(self.profile, record, self.kind, self.budget, counts, self.slowness(rows, work))
            if added_seconds and self.profile.timed_rows:
                self.say(rows)
            self.unsaved_seconds += added_seconds
            if self.unsaved_seconds > SAVE_SECONDS:
                self.save()
        if not (work.nodes or record.draft_passes):
            self.note_plain(rows, record.decoding_seconds)
        elif self.latest:  # of a long stretch of drafts none is left that was long ago
            self.latest.popleft()
        self.has_drafted = bool(work.nodes)

    def note_plain(self, rows: int, seconds: float) -> None:
        """A step without drafts has taken so long."""
        if rows != self.latest_rows:
            self.latest.clear()
        if self.has_drafted is False:  # else it is dearer, see `counts`
            self.latest.append(seconds)
        self.latest_rows, self.has_drafted = rows, False

    def slowness(self, rows: int, work: Work) -> float:
        """How many times as long steps take as when those without drafts were timed; 1 of these, or if nothing tells.

        A machine becomes faster or slower by a third within minutes: drafts would seem cheap, or dear, for that alone.
        """
        is_known = rows == self.latest_rows and len(self.latest) in LATEST_STEPS
        if is_known and work.nodes and self.profile.step_count(rows, False) >= MAX_SAMPLES:
            ratio = lower_quartile(self.latest) / max(self.profile.plain_seconds(rows), 1e-9)
            return min(max(ratio, 1 / MAX_SLOWNESS), MAX_SLOWNESS)
        return 1.0

    def counts(self, rows: int, drafted: bool, is_new_pair: bool) -> bool:
        """Whether a step's seconds count: without drafts after another one without, or with drafts after one with.

        What a server sends of a step takes time of the next, so that a step without drafts after one with seems dearer
        than it is. Look-ups always count, because they may never follow each other, and so do a new pair's last tries:
        where the number of rows changes in each step, it may never draft in two. While a new pair waits for likely
        ones, steps without drafts use up no budget.
        """
        if drafted:
            is_last_try = is_new_pair and self.tries(rows, self.first_tree) > MIN_STEPS
            return self.has_drafted is True or self.kind == "lookup" or is_last_try
        is_waiting = is_new_pair and self.profile.step_count(rows, False) >= MAX_SAMPLES
        return self.has_drafted is False and not is_waiting

    def save(self) -> None:
        """Write the profile, if there is anything new in it."""
        if self.unsaved_seconds:
            save(self.profile)
        self.unsaved_seconds = 0.0


def tree_within(limits: TreeLimits, tree: Tree) -> Tree:
    """The tree, or the smallest one if it is larger than trees may be."""
    return tree if len(tree) - 1 <= limits.nodes and tree.depth <= limits.depth else Tree.parse("1")


def work_of(trees: list[TokenTree], kind: Cost) -> Work:
    """The work of a step for each row: rows are padded to the widest, on every level that a draft model reads."""
    if not any(tree.laws for tree in trees):
        return NO_WORK
    reads = dict[int, int]()  # by depth, of the row that reads most there
    for tree in trees if kind != "lookup" else ():
        row_reads = dict[int, int]()
        for node, law in tree.laws.items():
            if law.known_probs is None:
                depth = tree.depths[node]
                row_reads[depth] = row_reads.get(depth, 0) + 1
        for depth, count in row_reads.items():
            reads[depth] = max(reads.get(depth, 0), count)
    return Work(len(reads), sum(reads.values()), max(map(len, trees)) - 1)


def temperatures_of(record: "StepRecord") -> list[float]:
    """The rows' temperatures, as a profile has them."""
    temperatures = [row.sampling.temperature for row in record.targets.rows]
    rounded = {temperature: round(float(temperature), 1) for temperature in {*temperatures}}
    return [rounded[temperature] for temperature in temperatures]


def note(
    profile: Profile,
    record: "StepRecord",
    kind: Cost,
    budget: float | int,
    times: bool = True,
    slowness: float = 1.0,
) -> float:
    """Learn each row's acceptance under its own temperature; add a step that `times` while the profile needs more.

    Returns the seconds that it took.
    """
    rows, work = len(record.trees), work_of(record.trees, kind)
    temperatures = temperatures_of(record) if work is not NO_WORK else []  # then nobody was asked
    for temperature in {*temperatures}:
        if (tracker := profile.at(temperature)).nodes < MAX_LEARNT_NODES:
            tracker.observe(record, rows=[row for row, other in enumerate(temperatures) if other == temperature])
    if not times or record.is_catching_up or record.is_first_of_size or profile.is_disturbed:
        return 0.0
    if not work.nodes and profile.step_count(rows, False) >= MAX_SAMPLES:  # else a long rest would use all up
        return 0.0
    if profile.timed_rows and profile.spent_near(rows) >= budget:
        return 0.0
    draft, target = record.seconds["draft"], record.seconds["target"]
    profile.add(rows, Timed(*work, draft, target, record.decoding_seconds - draft - target), slowness)
    return record.decoding_seconds
