"""`tree="auto"`: trees that grow while it pays, by what steps were measured to take and what was accepted so far."""

import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from multidraft.autotune.estimates import DEFAULT, MOST_DRAFTS, AcceptanceTracker, Costs, Timed, Work
from multidraft.autotune.growing import Growing, Kind, kind_of
from multidraft.autotune.plans import (
    FIRST,
    MOST_SAMPLES,
    Profile,
    Subject,
    how_often,
    place,
    profile_for,
    save,
    say_once,
)
from multidraft.decoding.policy import Outlook, StaticTree
from multidraft.decoding.tree import NO_DRAFTS, TokenTree, Tree
from multidraft.errors import AdviceError
from multidraft.verification.scheme import Scheme

if TYPE_CHECKING:
    from multidraft.decoding.record import StepRecord

AGAIN = 8  # steps after which prices are found anew
PLAIN = 16  # steps of which one has no drafts, until enough of these have been timed
PROBE, PAUSE, LONGEST = 2, 32, 512  # steps of a probe of a draft model that is not asked, and steps between two
MARGIN, DOUBT = 0.02, 0.02  # by which drafts must be faster than none, and more by every doubling of the rows
MEMORY, STEPS = 100.0, 32.0  # nodes over which what was accepted fades by a factor e, and steps over which speed does
MEASURED, ASSUMED = 10.0, 4.0  # nodes as which the profile's acceptance counts, and as which what is assumed does
NODES = 1000.0  # nodes that drafts were verified at, after which a profile learns no more of acceptance
SAVE = 2.0  # seconds of timed steps after which a profile is kept
TIMING = (
    "timing the steps of this pair while it decodes, for at most %g s, %s (--tune-budget 0, from Python tune_budget=0, "
    "does without)"
)
NO_DRAFTS_BEST = "no drafts are best here: pass None in place of the draft model (--draft none)"
NOTHING = Work(0, 0, 0)  # is drafted
FREE, DEAR = Tree.levels([1] * 7), Tree.parse("1x6")  # are timed first: the second takes two passes of a draft model
EVIDENT = 32  # steps after which it may be said that drafts do not pay
CHAINS = [NO_DRAFTS, *(Tree.levels([1] * length) for length in range(1, 9))]  # one of which is as fast as is hoped for


@dataclass(frozen=True)
class Limits:
    """How large trees may become, so that their memory is known."""

    nodes: int = 32
    depth: int = 16

    @classmethod
    def parse(cls, text: str) -> "Limits":
        """What follows `auto`, such as `auto,nodes=24,depth=6`."""
        found = re.fullmatch(r"auto((?:,(?:nodes|depth)=[1-9]\d{0,3})*)", text.replace(" ", "").lower())
        parts = [part.split("=") for part in found[1].split(",")[1:]] if found else []
        if not found or len(dict(parts)) < len(parts):
            raise AdviceError(f"tree {text!r} does not parse; write auto, or auto,nodes=24,depth=6")
        return cls(**{name: int(value) for name, value in parts})


class Auto(Growing):
    """Trees that grow while that pays; a draft model whose drafts do not is left alone.

    It goes by a profile, corrected by a moving average of this call's own verdicts. Without a budget of seconds in
    which steps are timed it reads no clock, so that a seed repeats a run.
    """

    def __init__(
        self,
        profile: Profile,
        temperature: float | int,
        limits: Limits | None = None,
        budget: float | int = 0.0,
        kind: Kind = "model",
    ):
        limits = limits or Limits()
        super().__init__(limits.nodes, limits.depth, kind)
        self.profile, self.temperature, self.budget = profile, round(float(temperature), 1), budget
        self.most_drafts, self.counts_drawn = MOST_DRAFTS, range(1, MOST_DRAFTS + 1)
        self.prior, self.recent = profile.rates(temperature), AcceptanceTracker()
        some = FREE if kind == "free" else DEAR
        some = some if len(some) - 1 <= limits.nodes and some.depth <= limits.depth else Tree.parse("1")
        self.plain, self.some = StaticTree(NO_DRAFTS), StaticTree(some)  # which are timed first
        self.fixed: StaticTree | None = None  # the tree of a step that is timed, in place of one that grows
        self.trees: list[TokenTree] = []
        self.costs: Costs | None = None  # by which prices were found last
        self.rows = self.steps = self.idle = 0
        self.tried = Counter[int]()  # steps with the first tree, by rows
        self.pause = self.left = PAUSE
        self.tokens = self.seconds = self.prompted = self.unsaved = 0.0

    @property
    def rests(self) -> bool:
        """Whether nothing is drafted at present, so that what the draft model has not read can wait."""
        return self.kind == "model" and bool(self.rows) and not (self.pays or self.probes)

    @property
    def expected(self) -> Outlook | None:
        """What the trees as they were drawn let expect."""
        if not self.trees or self.costs is None or self.fixed is not None:
            return None
        tokens = sum(self.reach(tree, node) for tree in self.trees for node in range(len(tree)))
        return Outlook(tokens, self.costs.seconds(work_of(self.trees, self.kind)))

    def charge(self, prompt_tokens: int, new_tokens: int) -> None:
        """Count what the draft model reads of prompts as a price of the new tokens, so far so many."""
        self.prompted = prompt_tokens / max(new_tokens, 1)

    def foresee(self, rows: int, prompt_tokens: int, new_tokens: int) -> None:
        """Choose for a run that is about to begin, so that a draft model that is not used need not read the prompts."""
        self.charge(prompt_tokens, new_tokens)
        if self.profile.known:
            self.choose(rows)

    def begin(self, rows: int) -> None:
        """Time the first steps of a new pair; find prices anew every few steps, and whenever rows have come or gone."""
        super().begin(rows)
        plain = self.profile.measured(rows, False)
        if self.profile.known:
            if rows != self.rows or self.steps % AGAIN == 0:
                self.choose(rows)
            self.probe()
            timed = self.profile.spent_near(rows) < self.budget and plain < MOST_SAMPLES
            self.fixed = self.plain if timed and self.steps % PLAIN == PLAIN - 1 else None  # what others compare with
        elif plain < FIRST or self.tried[rows] >= 2 * FIRST:  # also where nothing can be drafted
            self.fixed = self.plain
        else:
            self.fixed = self.some
        self.rows, self.steps = rows, self.steps + 1

    def choose(self, rows: int) -> None:
        """The prices of drafts at the rate of tokens so far: they have to win by a margin over no drafts."""
        rates = self.recent.rates(self.prior, ASSUMED if self.prior is DEFAULT else MEASURED)
        self.costs = costs = self.profile.costs(rows)
        if rows != self.rows or not self.seconds:  # by the rate of no drafts the first trees would become too large
            chains = CHAINS if self.kind == "model" else CHAINS[:1]
            outlooks = [Outlook(rates.tokens(tree), costs.seconds(Work.of_tree(tree))) for tree in chains]
            best = max(outlooks, key=lambda own: own.tokens / own.seconds)
            self.tokens, self.seconds = AGAIN * rows * best.tokens, AGAIN * best.seconds
        self.rows = rows
        rate = max(1 / costs.seconds(NOTHING), self.tokens / self.seconds / rows)
        self.price(rates, costs, rate, self.prompted, MARGIN + DOUBT * math.log2(rows))
        if self.pays:  # which has to last before pauses are as short as at first
            self.pause = max(self.pause // 2, PAUSE)

    def probe(self) -> None:
        """Ask a draft model that does not pay after every pause, which the next one exceeds."""
        self.left = self.pause if self.pays else self.left - 1
        self.probes = self.left < 0
        if self.left < -PROBE:
            self.pause = min(2 * self.pause, LONGEST)
            self.left, self.probes = self.pause, False
            self.recent.fade(math.exp(-self.pause / (8 * MEMORY)))

    def reads(self, trees: list[TokenTree], depth: int) -> list[list[int]]:
        """What the tree in use reads."""
        self.trees, self.frugal = trees, False
        return super().reads(trees, depth) if self.fixed is None else self.fixed.reads(trees, depth)

    def counts(self, trees: list[TokenTree], depth: int) -> list[dict[int, int]]:
        """What it draws."""
        return super().counts(trees, depth) if self.fixed is None else self.fixed.counts(trees, depth)

    def name(self, tree: TokenTree) -> str:
        """What it is, or has grown to."""
        return super().name(tree) if self.fixed is None else self.fixed.name(tree)

    def observe(self, record: "StepRecord") -> None:
        """Learn from what the rule accepts, which is exact: no coin is in it. Time the step while the budget lasts."""
        self.trees = []
        if not any(record.scored):
            return
        self.recent.observe(record, MEMORY)
        work = work_of(record.trees, self.kind)
        self.tried[self.rows] += self.fixed is self.some
        self.left += self.probes and record.is_catching_up  # a probe lasts until the rows that lag have drafted
        self.prompted *= not work.reads
        self.idle += not work.nodes
        if self.budget or not self.profile.known:
            if self.profile.known and self.profile.spent_near(self.rows) < self.budget < math.inf:
                say_once(TIMING, self.budget, how_often(place(self.profile.identity)))
            self.unsaved += note(self.profile, self.temperature, record, self.kind, self.budget)
            if self.unsaved > SAVE:
                self.finish(advise=False)
        if self.costs:
            fade = math.exp(-1 / STEPS)
            self.tokens = self.tokens * fade + sum(len(emitted.tokens) for emitted in record.emitted)
            self.seconds = self.seconds * fade + self.costs.seconds(work)

    def finish(self, advise: bool = True) -> None:
        """Keep what was measured; where drafts have not paid, say how to do without, once."""
        if self.unsaved:
            save(self.profile)
        self.unsaved = 0.0
        if advise and self.steps >= EVIDENT and self.idle > self.steps / 2 and self.costs:
            plain = self.rows * self.seconds / self.costs.seconds(NOTHING)
            if self.tokens <= (1 + MARGIN) * plain:
                say_once(NO_DRAFTS_BEST)


def work_of(trees: list[TokenTree], kind: Kind) -> Work:
    """What a step has done for each row: all are filled up to the widest, on every level that a draft model reads."""
    asked = [Counter(tree.depths[node] for node, law in tree.laws.items() if law.known is None) for tree in trees]
    levels = {depth for own in asked for depth in own} if kind != "free" else set()
    reads = sum(max(own[depth] for own in asked) for depth in levels)
    return Work(len(levels), reads, max(map(len, trees)) - 1)


def note(profile: Profile, temperature: float | int, record: "StepRecord", kind: Kind, budget: float | int) -> float:
    """Let a profile learn from a step while it lacks anything; how many seconds it has heard of."""
    rows, own = len(record.trees), profile.at(temperature)
    if own.nodes < NODES:
        own.observe(record)
    if record.is_catching_up or (profile.known and profile.spent_near(rows) >= budget):
        return 0.0
    draft, target = record.seconds["draft"], record.seconds["target"]
    rest = sum(record.seconds.values()) - record.seconds["measure"] - draft - target
    profile.add(rows, Timed(*work_of(record.trees, kind), draft, target, rest))
    return draft + target + rest


def can_choose(scheme: Scheme) -> bool:
    """Whether a scheme takes every number of drafts, in a time that does not depend on the vocabulary's sets."""
    law = scheme.law
    return not (law.several or law.fixed_drafts or law.draft_probability < 1 or scheme.entry.small)


def auto(
    subject: Subject,
    temperature: float | int,
    limits: Limits | None = None,
    file: Path | None = None,
    budget: float | int = 0.0,
) -> Auto:
    """The policy of `tree="auto"`; with a profile's file given nothing is measured."""
    return Auto(profile_for(subject, file), temperature, limits, 0.0 if file else budget, kind_of(subject.draft))
