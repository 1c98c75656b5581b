"""Profiles with costs and acceptance that are made up, so that no test measures seconds."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from multidraft.autotune.estimates import CLASSES, MAX_DRAFTS, AcceptanceTracker, Costs, Rates, Timed, Work
from multidraft.autotune.plans import Profile
from multidraft.decoding.tree import NO_DRAFTS, Tree

TIMED = ("", "1", "1x1x1", "1x6", "1x1x1x1x1x1x1", "4x1x1", "4x2x2")
FULL = 1e9  # seconds spent, and weight of nodes seen: nothing is left to measure


def costs(target: float = 10.0, level: float = 1.0, node: float = 0.0, more: float = 0.0) -> Costs:
    """A pass takes `target` and `node` for each node, a level of drafts `level` and `more` for each node it reads."""
    return Costs(target, target, node, level, more)


def rates(one: float, second: float = 0.5) -> Rates:
    """One draft is accepted with a probability; each further one takes a share of what was left."""
    counts = np.arange(MAX_DRAFTS + 1.0)
    missing = np.where(counts > 0, (1 - one) * (1 - second) ** (counts - 1), 1.0)
    gains, shares = -np.diff(missing), np.zeros((MAX_DRAFTS + 1, MAX_DRAFTS))
    for drafts in range(1, MAX_DRAFTS + 1):
        total = gains[:drafts].sum()
        shares[drafts, :drafts] = gains[:drafts] / total if total else 1 / drafts
    return Rates(missing, np.ones(CLASSES), shares, np.full(CLASSES, 1 / CLASSES))


def seen(found: Rates) -> AcceptanceTracker:
    """What a tracker has learnt where rates are these."""
    own = AcceptanceTracker()
    own.weight += FULL
    own.claimed += FULL * found.table
    own.ranks += FULL * found.shares
    return own


def profile(
    known: dict[str, Any] | None = None,
    by_rows: Mapping[int, Costs] | None = None,
    found: Rates | None = None,
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0),
    spent: float = FULL,
) -> Profile:
    """A profile of what `known` says, with the same acceptance at every temperature."""
    own = Profile(known or {})
    for rows, price in (by_rows or {1: costs()}).items():
        for name in TIMED:
            for _ in range(4):
                own.add(rows, timed(price, Tree.parse(name) if name else NO_DRAFTS))
        own.spent[rows] = spent
    own.acceptance = {temperature: seen(found or rates(0.7)) for temperature in temperatures}
    return own


def timed(price: Costs, tree: Tree) -> Timed:
    """A step with a tree at these costs."""
    work = Work.of_tree(tree)
    own = price.seconds(work._replace(levels=0, reads=0))
    return Timed(*work, price.seconds(work) - own, own, 0.0)


def made_up(known: dict[str, Any]) -> Profile:
    """In place of measuring."""
    return profile(known)
