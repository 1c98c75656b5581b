"""A plan: what was measured of a pair on a machine, from which every decision follows; readable JSON."""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from multidraft.autotune.candidates import Candidates
from multidraft.autotune.costs import Costs, CostsByRows, Curve
from multidraft.autotune.predictions import Confidence, Predictions
from multidraft.autotune.rates import Rates
from multidraft.decoding.tree import NO_DRAFTS, Tree
from multidraft.errors import AdviceError

FORM = 6
DRAFT_PROBABILITIES = tuple(tenths / 10 for tenths in range(1, 11))


@dataclass(frozen=True)
class AtTemperature:
    """What was measured at one temperature."""

    temperature: float
    rates: Rates
    drafts: list[list[int]]  # the fixed trees to choose from, each by the drafts of its slots
    tempers: list[float]  # by number of drafts: what the draft temperature is multiplied by
    covered: list[float]  # acceptance of one draft that is made with each of `DRAFT_PROBABILITIES`
    confidence: Confidence
    look: float = 0.0  # seconds that a level takes more where a shape looks at draft distributions, for one row
    growing: float = 0.0  # the speed of trees that grow over that of the best fixed one for one row, as measured
    noise: float = 0.0  # the standard error of that

    @property
    def grows(self) -> bool:
        """Whether trees that grow are better by more than their noise."""
        return self.growing > 1 + self.noise

    @cached_property
    def predictions(self) -> Predictions:
        """What trees that grow go by."""
        return Predictions(self.rates, self.confidence)

    @property
    def trees(self) -> list[Tree]:
        """The fixed trees to choose from; the first has no drafts."""
        return [Tree.from_drafts(drafts) for drafts in self.drafts]


@dataclass(frozen=True)
class PairPlan:
    """Costs by rows, and acceptance by temperature; `identity` says of which pair, on which machine."""

    identity: dict[str, Any]
    threads: int
    costs: CostsByRows
    acceptance: tuple[AtTemperature, ...]  # from the lowest temperature to the highest
    day: str = ""

    @cached_property
    def candidates(self) -> list[Candidates]:
        """By temperature the trees to choose from, with what is predicted of them."""
        return [Candidates(own.trees, own.rates, self.costs) for own in self.acceptance]

    def at(self, temperature: float | int) -> AtTemperature:
        """What was measured at the nearest temperature."""
        return self.acceptance[self.nearest(temperature)]

    def choice(self, temperature: float | int) -> Candidates:
        """The trees to choose from at a temperature."""
        return self.candidates[self.nearest(temperature)]

    def nearest(self, temperature: float | int) -> int:
        """The place of the nearest temperature."""
        return min(range(len(self.acceptance)), key=lambda place: abs(self.acceptance[place].temperature - temperature))

    def best_draft_probability(self, temperature: float | int, rows: int) -> tuple[float, float]:
        """With which probability to draft one token by row and step, and the tokens a second that it gives.

        In the long run (1 + sum min(p, a q)) tokens take the time of a step with a draft, if any row makes one, else
        that of a plain one (Randomised Drafting, A.1, as renewal-reward). Drafts must be those of a law whose rule
        knows a, such as `iid:lorenz,draft_probability=0.8`.
        """
        costs = self.costs.at(rows)
        plain, drafted = costs.of_tree(NO_DRAFTS), costs.of_tree(Tree.levels((1,)))
        speeds = {0.0: rows / plain}
        for a, covered in zip(DRAFT_PROBABILITIES, self.at(temperature).covered, strict=True):
            none = (1 - a) ** rows
            speeds[a] = rows * (1 + covered) / (none * plain + (1 - none) * drafted)
        best = max(speeds, key=speeds.__getitem__)
        return best, speeds[best]

    def as_json(self) -> str:
        """The plan as a text."""
        return json.dumps({"multidraft plan": FORM} | asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "PairPlan":
        """The plan that a text holds; raises AdviceError where it holds none."""
        try:
            return made(json.loads(text))
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise AdviceError(f"it is no plan ({error}); make one with `multidraft tune --out`") from None


def made(found: dict[str, Any]) -> PairPlan:
    """A plan from its parts; raises ValueError, KeyError or TypeError where one is missing or strange."""
    if found["multidraft plan"] != FORM:
        raise ValueError(f"of form {found['multidraft plan']!r}")
    costs = CostsByRows(tuple(found["costs"]["rows"]), tuple(map(costs_from, found["costs"]["costs"])))
    acceptance = tuple(map(learnt_from, found["acceptance"]))
    if not (acceptance and costs.rows[:1] == (1,) and len(costs.rows) == len(costs.costs)):
        raise ValueError("something is missing")
    return PairPlan(dict(found["identity"]), int(found["threads"]), costs, acceptance, str(found["day"]))


def costs_from(found: dict[str, Any]) -> Costs:
    """Costs with their curves."""
    curves = {name: Curve(tuple(found[name]["counts"]), tuple(found[name]["seconds"])) for name in ("target", "level")}
    return Costs(**found | curves)


def learnt_from(found: dict[str, Any]) -> AtTemperature:
    """What was learnt at a temperature."""
    told = found["confidence"]
    accepted, claimed = (tuple(map(tuple, told[name])) for name in ("accepted", "claimed"))
    made: dict[str, Any] = {"rates": Rates(**found["rates"])}
    made["confidence"] = Confidence(accepted, claimed, tuple(told["frequency"]))
    return AtTemperature(**found | made)
