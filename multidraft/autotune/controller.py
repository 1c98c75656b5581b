"""`tree="auto"`: every few steps the tree that pays best, by what was measured and by what has been accepted since."""

import logging
import math
import re
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from multidraft.autotune.acceptance import DEFAULT, MOST_DRAFTS, AcceptanceTracker, Rates
from multidraft.autotune.costs import Costs
from multidraft.autotune.dynamic import Growing
from multidraft.autotune.identity import Subject
from multidraft.autotune.profile import Growth, Profile
from multidraft.autotune.store import profile_for
from multidraft.autotune.tree_search import menu
from multidraft.autotune.tuner import BLOCK, Tuner
from multidraft.decoding.policy import Outlook, StaticTree
from multidraft.decoding.tree import NO_DRAFTS, TokenTree, Tree
from multidraft.errors import AdviceError
from multidraft.verification.scheme import Scheme

if TYPE_CHECKING:
    from multidraft.decoding.record import StepRecord

NOTES = logging.getLogger("multidraft")
AGAIN = 8  # steps after which the choice is made anew; as many make a probe
PAUSE, LONGEST = 16, 256  # steps without drafts before a probe: the first pause, and the longest
MARGIN, DOUBT = 0.02, 0.02  # by which drafts must be faster than none, and more by every doubling of the rows
SWITCH = 0.01  # by which another tree must be faster than the one in use
MEMORY = 100.0  # nodes over which what was accepted fades by a factor e
MEASURED, ASSUMED = 10.0, 4.0  # nodes as which the profile's acceptance counts, and as which what is assumed does
TRIAL = 16  # choices, of which one tries what is not in use: trees that grow, or fixed ones
SLOW, STEPS = 30.0, 200.0  # steps at equal speed that speak against growing, and over which what it gave fades
HOPELESS = 2.0  # a draft that takes so many times what plain steps take, for each token, is not probed
EVIDENT = 32  # steps after which it may be said that drafts do not pay


@dataclass(frozen=True)
class Limits:
    """How large trees may become, so that their memory is known."""

    nodes: int = 32
    depth: int = 16

    @classmethod
    def parse(cls, text: str) -> "Limits":
        """What follows `auto`, such as `auto,nodes=24,depth=6`.

        >>> Limits.parse("auto,nodes=24")
        Limits(nodes=24, depth=16)
        """
        found = re.fullmatch(r"auto((?:,(?:nodes|depth)=[1-9]\d{0,3})*)", text.replace(" ", "").lower())
        parts = [part.split("=") for part in found[1].split(",")[1:]] if found else []
        if not found or len(dict(parts)) < len(parts):
            raise AdviceError(f"tree {text!r} does not parse; write auto, or auto,nodes=24,depth=6")
        return cls(**{name: int(value) for name, value in parts})


class Auto:
    """A policy that chooses anew every few steps among no drafts, a few fixed trees, and trees that grow.

    It goes by a profile, corrected by a moving average of this call's own verdicts. Without a budget of seconds for
    timing trees it reads no clock, so that a seed repeats a run.
    """

    def __init__(
        self, profile: Profile, temperature: float | int, limits: Limits | None = None, budget: float | int = 0.0
    ):
        self.limits, self.temperature, self.profile = limits or Limits(), round(float(temperature), 1), profile
        self.most_drafts, self.most_nodes = MOST_DRAFTS, self.limits.nodes + 1
        self.counts_drawn = range(1, MOST_DRAFTS + 1)
        fills = profile.spent < budget or not profile.known
        self.tuner = Tuner(profile, budget, self.limits.nodes, self.limits.depth) if fills else None
        self.prior, self.recent = profile.rates(temperature), AcceptanceTracker()
        self.growth = deepcopy(profile.growth.get(self.temperature, Growth()))
        self.fixed, self.growing = StaticTree(NO_DRAFTS), Growing(self.limits.nodes, self.limits.depth)
        self.policy: StaticTree | Growing = self.fixed
        self.expected: Outlook | None = None
        self.menus = dict[int, list[Tree]]()
        self.rows = self.left = self.turns = self.steps = self.rested = 0
        self.pause, self.prompted = PAUSE, 0.0
        self.measuring = self.settled = self.lacks = False

    @property
    def rests(self) -> bool:
        """Whether nothing is drafted at present, so that what the draft model has not read can wait."""
        return bool(self.rows) and self.policy is self.fixed and len(self.fixed.shape) == 1

    def charge(self, prompt_tokens: int, new_tokens: int) -> None:
        """Count what the draft model reads of prompts as a price of the new tokens, so far so many."""
        self.prompted = prompt_tokens / max(new_tokens, 1)

    def foresee(self, rows: int, prompt_tokens: int, new_tokens: int) -> None:
        """Choose for a run that is about to begin, so that a draft model that is not used need not read the prompts."""
        self.charge(prompt_tokens, new_tokens)
        if self.profile.known:
            self.rows = rows
            self.choose(rows, False)

    def begin(self, rows: int) -> None:
        """Choose anew every few steps, and whenever rows have come or gone."""
        self.left, before = self.left - 1, (self.rows, self.fixed.shape, self.policy)
        if rows != self.rows or self.left < 0:
            self.decide(rows)
        self.settled = self.steps > 0 and before == (self.rows, self.fixed.shape, self.policy)
        self.steps, self.rested = self.steps + 1, self.rested + self.rests
        self.policy.begin(rows)

    def decide(self, rows: int) -> None:
        """Time a tree, if one is wanted and the last turn had none; otherwise take what pays best."""
        wanted, known = self.tuner.wanted(rows) if self.tuner else None, self.profile.known
        if self.lacks and wanted is None:
            self.menus.clear()  # they went by guesses
        self.lacks, self.measuring = wanted is not None, wanted is not None and not (self.measuring and known)
        resumed, self.rows, self.turns = rows == self.rows, rows, self.turns + 1
        if wanted is not None and self.measuring:
            self.take(wanted, BLOCK)
        elif known:
            self.choose(rows, resumed)

    def choose(self, rows: int, resumed: bool) -> None:
        """What makes most tokens a second by a margin; where drafts do not pay, a probe now and then."""
        rates, costs = self.rates, self.profile.costs(rows)
        times = {tree: self.time(tree, rates, costs) for tree in self.menu(rows)}
        best = min(times, key=times.__getitem__)
        self.growing.price(rates, costs, rows, 1 / times[best])
        self.expected = Outlook(rows * rates.tokens(best), costs.of_tree(best))
        drafted = min((tree for tree in times if len(tree) > 1), key=times.__getitem__)
        if len(best) == 1 and resumed and self.rests and times[drafted] < HOPELESS * times[best]:
            self.probe(drafted)
            return
        gain = self.growth.gain(rows / costs.of_tree(NO_DRAFTS), SLOW * costs.of_tree(best))
        grows = (gain > 1 + MARGIN) != (self.turns % TRIAL == TRIAL // 2)
        self.take(None if grows else best, AGAIN if grows or len(best) > 1 else self.pause)
        if len(best) > 1:  # which has to last before pauses are as short as at first
            self.pause = max(self.pause // 2, PAUSE)

    def probe(self, drafted: Tree) -> None:
        """After a pause, which the next one exceeds, try the best fixed tree or trees that grow, by turns."""
        self.recent.fade(math.exp(-self.pause / (4 * MEMORY)))
        self.pause = min(2 * self.pause, LONGEST)
        self.take(None if self.turns % 4 < 2 else drafted, AGAIN)

    def time(self, tree: Tree, rates: Rates, costs: Costs) -> float:
        """Predicted seconds a token; drafts have to win by a margin, and the tree in use has it easier."""
        seconds = costs.of_tree(tree) / (self.rows * rates.tokens(tree))
        if len(tree) > 1:
            seconds = (seconds + self.prompted * costs.reading()) * (1 + MARGIN + DOUBT * math.log2(self.rows))
        return seconds * (1 - SWITCH) if tree == self.fixed.shape else seconds

    def take(self, tree: Tree | None, steps: int) -> None:
        """Stay with a fixed tree for so many steps, or with trees that grow, of which as much is expected."""
        if tree is not None and self.profile.known:
            seconds = self.profile.costs(self.rows).of_tree(tree)
            self.expected = Outlook(self.rows * self.rates.tokens(tree), seconds)
        if tree is not None and tree != self.fixed.shape:
            self.fixed = StaticTree(tree)
        self.policy, self.left = self.growing if tree is None else self.fixed, steps - 1

    def menu(self, rows: int) -> list[Tree]:
        """The fixed trees to choose from with so many rows, by what was known when they were first needed."""
        if rows not in self.menus:
            self.menus[rows] = menu(self.rates, self.profile.costs(rows), rows, self.limits.nodes, self.limits.depth)
        return self.menus[rows]

    @property
    def rates(self) -> Rates:
        """The profile's acceptance, corrected by what this call has seen."""
        return self.recent.rates(self.prior, ASSUMED if self.prior is DEFAULT else MEASURED)

    def reads(self, trees: list[TokenTree], depth: int) -> list[list[int]]:
        """What the policy in use reads."""
        return self.policy.reads(trees, depth)

    def counts(self, trees: list[TokenTree], depth: int) -> list[dict[int, int]]:
        """What the policy in use draws."""
        return self.policy.counts(trees, depth)

    def name(self, tree: TokenTree) -> str:
        """As the policy in use calls it."""
        return self.policy.name(tree)

    def observe(self, record: "StepRecord") -> None:
        """Learn from what the rule accepts, which is exact: no coin is in it."""
        if not record.target_pass:
            return
        self.recent.observe(record, MEMORY)
        self.prompted *= not record.draft_passes  # what was to be read has been
        learns = self.tuner is not None and self.tuner.learns(self.rows, self.temperature)
        if self.profile.known and not self.measuring:
            tokens, seconds = sum(len(emitted.tokens) for emitted in record.emitted), self.seconds_of(record)
            for growth in (self.growth, *([self.profile.growth_at(self.temperature)] if learns else [])):
                growth.add(self.policy is self.growing, tokens, seconds, STEPS)
        if self.tuner and learns:
            self.profile.at(self.temperature).observe(record)
            tree = self.fixed.shape if self.policy is self.fixed and self.settled else None
            self.tuner.record(tree, self.rows, record, self.measuring)

    def seconds_of(self, record: "StepRecord") -> float:
        """What the step takes by the profile."""
        costs, rows = self.profile.costs(self.rows), len(record.trees)
        if self.policy is self.fixed:
            return costs.of_tree(self.fixed.shape)
        read = Counter(tree.depths[node] for tree in record.trees for node in tree.laws)
        nodes = sum(len(tree) - 1 for tree in record.trees)
        return costs.seconds([count / rows for count in read.values()], nodes / rows)

    def finish(self, advise: bool = True) -> None:
        """Keep what was measured; where drafts have not paid, say how to do without, once."""
        if self.tuner:
            self.tuner.close()
        if advise and self.steps >= EVIDENT and self.rested > self.steps / 2:
            no_drafts_best()


@lru_cache(maxsize=1)
def no_drafts_best() -> None:
    """Advice."""
    NOTES.warning("no drafts are best here: pass None in place of the draft model (--draft none)")


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
    return Auto(profile_for(subject, file), temperature, limits, 0.0 if file else budget)
