"""A profile: what was measured of a pair on a machine, as readable JSON with a checksum."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np

from multidraft.autotune.acceptance import DEFAULT, AcceptanceTracker, Rates
from multidraft.autotune.costs import Costs, Parts, fitted
from multidraft.errors import AdviceError

FORM = 7
MOST_SAMPLES = 9  # steps kept of each tree, of which the median counts
TRUSTED = 20.0  # nodes after which measured acceptance is believed more than none


@dataclass
class Growth:
    """Tokens and predicted seconds of steps with fixed trees and with trees that grow, side by side."""

    tokens: list[float] = field(default_factory=lambda: [0.0, 0.0])
    seconds: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def add(self, grows: bool, tokens: float | int, seconds: float | int, memory: float) -> None:
        """A step of either kind; those before it fade by a factor e over `memory` steps."""
        self.tokens[grows] = self.tokens[grows] * math.exp(-1 / memory) + tokens
        self.seconds[grows] = self.seconds[grows] * math.exp(-1 / memory) + seconds

    def gain(self, plain: float | int, doubt: float | int) -> float:
        """The speed of trees that grow over that of fixed ones, which no drafts make as fast as `plain` at least.

        So many seconds at equal speed speak against it, because a few steps say little.

        >>> Growth([10.0, 30.0], [1.0, 2.0]).gain(1.0, 0.0)
        1.5
        """
        fixed = max(self.tokens[0] / self.seconds[0], plain) if self.seconds[0] else plain
        return (self.tokens[1] + doubt * fixed) / max((self.seconds[1] + doubt) * fixed, 1e-300)


@dataclass
class Profile:
    """Seconds of steps by rows and tree, and acceptance by temperature; it fills up while a pair decodes."""

    identity: dict[str, Any]
    samples: dict[int, dict[str, list[Parts]]] = field(default_factory=dict)
    acceptance: dict[float, AcceptanceTracker] = field(default_factory=dict)
    growth: dict[float, Growth] = field(default_factory=dict)
    spent: float | int = 0.0  # seconds of steps that were made to measure
    costs_at: dict[int, Costs] = field(default_factory=dict, repr=False, compare=False)  # fitted, until more is known

    def add(self, rows: int, tree: str, parts: Parts) -> None:
        """The seconds of a step."""
        runs = self.samples.setdefault(rows, {}).setdefault(tree, [])
        runs.append(parts)
        del runs[:-MOST_SAMPLES]
        self.costs_at.clear()

    def measured(self, rows: int, tree: str) -> int:
        """How many steps of a tree have been timed."""
        return len(self.samples.get(rows, {}).get(tree, ()))

    @property
    def known(self) -> list[int]:
        """The numbers of rows of which costs are known."""
        return sorted(rows for rows, trees in self.samples.items() if "" in trees and len(trees) > 1)

    def costs(self, rows: int) -> Costs:
        """The costs with any number of rows: as measured, or as those of the nearest number that was."""
        if rows not in self.costs_at:
            nearest = min(self.known, key=lambda other: abs(np.log(other / rows)))
            self.costs_at[rows] = fitted(self.samples[nearest]).scaled(rows / nearest)
        return self.costs_at[rows]

    def at(self, temperature: float | int) -> AcceptanceTracker:
        """What was accepted at about this temperature, to be added to."""
        return self.acceptance.setdefault(round(float(temperature), 1), AcceptanceTracker())

    def growth_at(self, temperature: float | int) -> Growth:
        """What trees that grow gave at about this temperature, to be added to."""
        return self.growth.setdefault(round(float(temperature), 1), Growth())

    def rates(self, temperature: float | int) -> Rates:
        """The acceptance at the nearest temperature at which enough was seen; otherwise what is assumed of any pair."""
        known = [other for other, own in self.acceptance.items() if own.weight.sum() > TRUSTED]
        nearest = min(known, key=lambda other: abs(other - temperature), default=None)
        return DEFAULT if nearest is None else self.acceptance[nearest].rates(rounds=4)

    def as_json(self) -> str:
        """The profile as a text."""
        acceptance = {temperature: sparse(own) for temperature, own in sorted(self.acceptance.items())}
        growth = {temperature: [own.tokens, own.seconds] for temperature, own in sorted(self.growth.items())}
        content = {"identity": self.identity, "samples": self.samples, "acceptance": acceptance, "growth": growth}
        content |= {"spent": round(self.spent, 3)}
        plain = json.loads(json.dumps(content))
        return json.dumps({"multidraft plan": FORM, "checksum": checksum(plain)} | plain)

    @classmethod
    def from_json(cls, text: str) -> "Profile":
        """The profile that a text holds; raises AdviceError where it holds none."""
        try:
            found = json.loads(text)
            if found.pop("multidraft plan") != FORM:
                raise ValueError("of another version")
            if found.pop("checksum") != checksum(found):
                raise ValueError("its checksum is wrong")
            return made(found)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise AdviceError(f"it is no plan ({error}); make one with `multidraft tune --out`") from None


def made(found: dict[str, Any]) -> Profile:
    """A profile from its parts; raises ValueError, KeyError or TypeError where one is missing or strange."""
    samples = {
        int(rows): {tree: [parts_of(run) for run in runs] for tree, runs in trees.items()}
        for rows, trees in found["samples"].items()
    }
    acceptance = {float(temperature): dense(own) for temperature, own in found["acceptance"].items()}
    growth = {float(temperature): Growth(*own) for temperature, own in found["growth"].items()}
    return Profile(dict(found["identity"]), samples, acceptance, growth, float(found["spent"]))


def parts_of(run: Sequence[float | int]) -> Parts:
    """The three times of a step."""
    draft, target, rest = map(float, run)
    return draft, target, rest


def checksum(content: dict[str, Any]) -> str:
    """A digest of all that a profile says."""
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def sparse(own: AcceptanceTracker) -> dict[str, list[list[float | int]]]:
    """What a tracker has learnt, without the cases that never came."""
    places = np.argwhere(own.weight > 0).tolist()
    nodes = [[*place, float(own.claimed[*place]), float(own.weight[*place])] for place in places]
    return {"nodes": nodes, "ranks": [[*map(float, row)] for row in own.ranks]}


def dense(found: dict[str, list[list[float | int]]]) -> AcceptanceTracker:
    """The tracker that has learnt this."""
    own = AcceptanceTracker()
    for *place, claimed, weight in found["nodes"]:
        own.claimed[tuple(map(int, place))], own.weight[tuple(map(int, place))] = claimed, weight
    own.ranks += np.array(found["ranks"])
    return own
