"""Costs are measured while a pair decodes: trees take turns in the run's own steps, so that no token comes later."""

import logging
import math
from functools import lru_cache
from typing import TYPE_CHECKING

from multidraft.autotune.costs import tree_named
from multidraft.autotune.profile import Profile
from multidraft.autotune.store import place, save
from multidraft.decoding.tree import NO_DRAFTS, Tree

if TYPE_CHECKING:
    from multidraft.decoding.record import StepRecord

NOTES = logging.getLogger("multidraft")
FIRST = ("", "1x6")  # no drafts, and eight tokens from two passes of the draft model: with these all begins
TREES = (*FIRST, "1", "1x1x1", "4x1x1", "1x1x1x1x1x1x1", "2x2x2", "4x2x2")
BLOCK = 3  # steps with one tree in a row, of which the first counts as warm-up
ENOUGH, NODES = 4, 400.0  # steps of every tree, and nodes that drafts were verified at, after which no more is learnt
SMALL = 8  # nodes of trees that are timed whatever the first steps say
SAVE = 2.0  # seconds of measuring after which a profile is kept


class Tuner:
    """Fills a profile within a budget of seconds, for the numbers of rows that come."""

    def __init__(self, profile: Profile, budget: float | int, nodes: int, depth: int):
        self.profile, self.budget, self.unsaved = profile, budget, 0.0
        trees = map(tree_named, TREES)
        self.trees = [tree for tree in trees if len(tree) - 1 <= nodes and tree.depth <= depth]
        self.first = self.trees[:2]  # one draft in place of the second where trees must be smaller

    def wanted(self, rows: int) -> Tree | None:
        """The tree to be timed next; None where all have been, or the budget is spent."""
        if not self.profile.known:
            return next(tree for tree in self.first if not self.profile.measured(rows, tree.name))
        if self.profile.spent >= self.budget or rows & (rows - 1):
            return None
        timed = {tree: self.profile.measured(rows, tree.name) for tree in self.trees}
        lacking = [tree for tree in self.trees if timed[tree] < ENOUGH and self.may_pay(tree, rows)]
        if lacking and math.isfinite(self.budget):
            announced(place(self.profile.identity), self.budget)
        return min(lacking, key=lambda tree: timed[tree] // (BLOCK - 1), default=None)

    def may_pay(self, tree: Tree, rows: int) -> bool:
        """Whether a tree is small, or would pay if all its levels were accepted."""
        costs = self.profile.costs(rows)
        return len(tree) <= SMALL or costs.of_tree(tree) <= (tree.depth + 1) * costs.of_tree(NO_DRAFTS)

    def learns(self, rows: int, temperature: float | int) -> bool:
        """Whether steps still have something to say."""
        if self.profile.spent >= self.budget and self.profile.known:
            return False
        return bool(self.profile.at(temperature).weight.sum() < NODES) or self.wanted(rows) is not None

    def record(self, tree: Tree | None, rows: int, record: "StepRecord", measuring: bool) -> None:
        """Learn the seconds of a step with a fixed tree that followed its like; those of others say nothing."""
        seconds = sum(record.seconds.values()) - record.seconds["measure"]
        if tree is not None and (measuring or not rows & (rows - 1)):
            draft, target = record.seconds["draft"], record.seconds["target"]
            self.profile.add(rows, tree.name, (draft, target, seconds - draft - target))
        self.profile.spent += measuring * seconds
        self.unsaved += seconds
        if self.unsaved > SAVE:
            self.close()

    def close(self) -> None:
        """Keep what was learnt."""
        if self.unsaved:
            save(self.profile)
        self.unsaved = 0.0


@lru_cache(maxsize=8)
def announced(file: object, budget: float | int) -> None:
    """Say what is done, for how long, where it is kept, and how to do without."""
    NOTES.warning(
        "timing trees for this pair while it decodes, for at most %g s, once; kept in %s (--tune-budget 0, from Python "
        "tune_budget=0, does without)",
        budget,
        file,
    )
