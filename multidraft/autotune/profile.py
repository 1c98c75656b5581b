"""A profile: what was measured of a pair on a machine, as readable JSON with a checksum."""

import json
import math
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np

from multidraft.autotune.acceptance import DEFAULT, AcceptanceTracker, Rates
from multidraft.autotune.costs import Costs, Timed, fitted
from multidraft.errors import AdviceError

FORM = 8
FIRST = 3  # steps without drafts, and with some, after which costs can be told
MOST_SAMPLES = 9  # alike steps that are kept, of which the median counts
FEW, APART = 8, 4  # drafted nodes that are told apart, and of which more are told apart by so many
TRUSTED = 20.0  # nodes after which measured acceptance is believed more than none


@dataclass
class Profile:
    """Seconds of steps by rows, and acceptance by temperature; it fills up while a pair decodes."""

    identity: dict[str, Any]
    samples: dict[int, dict[str, list[Timed]]] = field(default_factory=dict)
    acceptance: dict[float, AcceptanceTracker] = field(default_factory=dict)
    spent: dict[int, float] = field(default_factory=dict)  # seconds of steps that were timed, by rows
    costs_at: dict[int, Costs] = field(default_factory=dict, repr=False, compare=False)  # fitted, until more is known

    def add(self, rows: int, step: Timed) -> None:
        """A step that was timed."""
        nodes = math.ceil(step.nodes)
        alike = f"{step.levels:g}/{nodes if nodes <= FEW else -(-nodes // APART) * APART}"
        runs = self.samples.setdefault(rows, {}).setdefault(alike, [])
        runs.append(Timed(*map(float, step)))
        del runs[:-MOST_SAMPLES]
        self.spent[rows] = self.spent.get(rows, 0.0) + step.draft + step.target + step.rest
        self.costs_at.clear()

    def measured(self, rows: int, drafted: bool) -> int:
        """How many steps have been timed, with drafts or without."""
        return sum(len(runs) for alike, runs in self.samples.get(rows, {}).items() if drafted != alike.endswith("/0"))

    @property
    def known(self) -> list[int]:
        """The numbers of rows of which costs are known."""
        both = (False, True)
        return sorted(rows for rows in self.samples if all(self.measured(rows, drafted) >= FIRST for drafted in both))

    def costs(self, rows: int) -> Costs:
        """The costs with any number of rows: as measured, or as those of the nearest number that was."""
        if rows not in self.costs_at:
            nearest = min(self.known, key=lambda other: abs(np.log(other / rows)))
            self.costs_at[rows] = fitted(self.samples[nearest]).scaled(rows / nearest)
        return self.costs_at[rows]

    def at(self, temperature: float | int) -> AcceptanceTracker:
        """What was accepted at about this temperature, to be added to."""
        return self.acceptance.setdefault(round(float(temperature), 1), AcceptanceTracker())

    def rates(self, temperature: float | int) -> Rates:
        """The acceptance at the nearest temperature at which enough was seen; otherwise what is assumed of any pair."""
        known = [other for other, own in self.acceptance.items() if own.weight.sum() + own.counts[1] > TRUSTED]
        nearest = min(known, key=lambda other: abs(other - temperature), default=None)
        return DEFAULT if nearest is None else self.acceptance[nearest].rates(rounds=4)

    def as_json(self) -> str:
        """The profile as a text."""
        acceptance = {temperature: sparse(own) for temperature, own in sorted(self.acceptance.items())}
        content = {"identity": self.identity, "samples": self.samples, "acceptance": acceptance, "spent": self.spent}
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
        int(rows): {alike: [Timed(*map(float, run)) for run in runs] for alike, runs in own.items()}
        for rows, own in found["samples"].items()
    }
    acceptance = {float(temperature): dense(own) for temperature, own in found["acceptance"].items()}
    return Profile(dict(found["identity"]), samples, acceptance, {int(k): float(v) for k, v in found["spent"].items()})


def checksum(content: dict[str, Any]) -> str:
    """A digest of all that a profile says."""
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def sparse(own: AcceptanceTracker) -> dict[str, list]:
    """What a tracker has learnt, without the cases that never came."""
    places = np.argwhere(own.weight > 0).tolist()
    nodes = [[*place, float(own.claimed[*place]), float(own.weight[*place])] for place in places]
    return {"nodes": nodes, "ranks": own.ranks.tolist(), "roots": own.roots.tolist(), "counts": own.counts.tolist()}


def dense(found: dict[str, list]) -> AcceptanceTracker:
    """The tracker that has learnt this."""
    own = AcceptanceTracker()
    for *place, claimed, weight in found["nodes"]:
        own.claimed[tuple(map(int, place))], own.weight[tuple(map(int, place))] = claimed, weight
    own.ranks += np.array(found["ranks"])
    own.roots += np.array(found["roots"])
    own.counts += np.array(found["counts"])
    return own
