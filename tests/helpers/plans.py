"""Profiles with costs and acceptance that are made up, so that no test measures seconds."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from multidraft.autotune.estimates import CLASSES, MAX_DRAFTS, AcceptanceTracker, Costs, Timed, TreeRates, Work
from multidraft.autotune.plans import Profile
from multidraft.decoding.tree import NO_DRAFTS, Tree

TIMED = ("", "1", "1x1x1", "1x6", "1x1x1x1x1x1x1", "4x1x1", "4x2x2")
FULL_WEIGHT = 1e9  # seconds spent, and weight of nodes seen: nothing is left to measure


def costs(target: float = 10.0, level: float = 1.0, node: float = 0.0, read: float = 0.0) -> Costs:
    """A pass takes `target` and `node` for each node, a level of drafts `level` and `read` for each node it reads."""
    return Costs(target, target, node, level, read)


def rates(first: float, second: float = 0.5) -> TreeRates:
    """One draft is accepted with a probability; each further one takes a share of what was left."""
    counts = np.arange(MAX_DRAFTS + 1.0)
    missing = np.where(counts > 0, (1 - first) * (1 - second) ** (counts - 1), 1.0)
    gains, shares = -np.diff(missing), np.zeros((MAX_DRAFTS + 1, MAX_DRAFTS))
    for drafts in range(1, MAX_DRAFTS + 1):
        total = gains[:drafts].sum()
        shares[drafts, :drafts] = gains[:drafts] / total if total else 1 / drafts
    return TreeRates(missing, np.ones(CLASSES), shares, np.full(CLASSES, 1 / CLASSES))


def seen(true_rates: TreeRates) -> AcceptanceTracker:
    """What a tracker has learnt where rates are these."""
    tracker = AcceptanceTracker()
    tracker.weight += FULL_WEIGHT
    tracker.claimed += FULL_WEIGHT * true_rates.table
    tracker.ranks += FULL_WEIGHT * true_rates.shares
    return tracker


def profile(
    known: dict[str, Any] | None = None,
    by_rows: Mapping[int, Costs] | None = None,
    true_rates: TreeRates | None = None,
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0),
    spent: float = FULL_WEIGHT,
) -> Profile:
    """A profile of what `known` says, with the same acceptance at every temperature."""
    made_profile = Profile(known or {})
    for rows, price in (by_rows or {1: costs()}).items():
        for name in TIMED:
            for _ in range(4):
                made_profile.add(rows, timed(price, Tree.parse(name) if name else NO_DRAFTS))
        made_profile.spent[rows] = spent
    made_profile.acceptance = {temperature: seen(true_rates or rates(0.7)) for temperature in temperatures}
    return made_profile


def timed(price: Costs, tree: Tree) -> Timed:
    """A step with a tree at these costs."""
    work = Work.of_tree(tree)
    our_seconds = price.seconds(work._replace(levels=0, reads=0))
    return Timed(*work, price.seconds(work) - our_seconds, our_seconds, 0.0)


def made_up(known: dict[str, Any]) -> Profile:
    """In place of measuring."""
    return profile(known)
