"""What an audit found, with a verdict; plain numbers for scripts, sentences for people."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from multidraft.auditing.exact import Case, Exact, Walked, examine
from multidraft.auditing.statistical import Sampled, Sampler, Subject
from multidraft.decoding.tree import Tree

EXACT_ERROR = 1e-12
ROUNDING = 1e-5


@dataclass
class Report:
    """The findings of all parts; a part that was left out is None or empty."""

    subject: Subject
    odds: float  # of a false alarm anywhere in the statistical part
    within: float  # the total variation that the verifier is stated to have at a node
    exact: Exact | None
    sampled: list[Sampled]
    walks: list[Walked]

    def exact_findings(self) -> list[Exact | Walked]:
        """The findings without noise."""
        return [*([self.exact] if self.exact else []), *self.walks]

    @property
    def deviation(self) -> float:
        """The largest difference between an exact probability and the target's."""
        return max((part.deviation for part in self.exact_findings()), default=math.nan)

    @property
    def total_variation(self) -> float:
        """The largest exact total variation from the target."""
        return max((part.total_variation for part in self.exact_findings()), default=math.nan)

    @property
    def biased(self) -> bool:
        """Whether any part found a bias."""
        return bool(self.guilty())

    def guilty(self) -> list[str]:
        """The parts that found a bias: "exact", "statistical", "walks"."""
        exact = self.exact
        checks = {
            "exact": exact is not None and (self.is_off(exact) or exact.impossible > max(EXACT_ERROR, self.within)),
            "statistical": any(part.biased for part in self.sampled),
            "walks": any(self.is_off(part) for part in self.walks),
        }
        return [name for name, is_guilty in checks.items() if is_guilty]

    def is_off(self, part: Exact | Walked) -> bool:
        """Whether an exact finding is beyond rounding and beyond what was stated.

        What a rule is off by counts twice in a walk at every node that draws. Replace the sub-walks by exact ones, one
        after another: each replacement changes the law of what is emitted, the failures included, by at most what the
        rule there does, and the failures can be as far off as the tokens.
        """
        times = 2 * sum(count > 0 for count in Tree.parse(part.tree).drafts) if isinstance(part, Walked) else 1
        return part.deviation > EXACT_ERROR and not part.total_variation <= times * self.within

    @property
    def verdict(self) -> str:
        """Biased, lossless, lossless within what was stated, or (where nothing could be summed up) no bias found."""
        if self.biased:
            return "biased"
        if not self.exact_findings():
            return "no bias found"
        return "lossless" if self.deviation <= EXACT_ERROR else "lossless within its stated deviation"

    @property
    def sentence(self) -> str:
        """The verdict with its reason."""
        name, verdict = self.subject.name, self.verdict
        judgement = f"no bias was found in {name}" if verdict == "no bias found" else f"{name} is {verdict}"
        return f"{judgement}: {self.reason()}"

    def reason(self) -> str:
        """What the verdict rests on."""
        guilty = self.guilty()
        if "exact" in guilty and self.exact:
            small = max(self.exact.total_variation, self.exact.impossible) < ROUNDING
            return describe_case(self.exact.worst) + "; if that is rounding, state it: within=1e-5" * small
        if "walks" in guilty:
            worst = max(self.walks, key=lambda part: part.total_variation)
            return (
                f"walking ({worst.walk}) over trees {worst.tree} of {worst.vocabulary} tokens, the law of the first "
                f"tokens is off by a total variation of {worst.total_variation:.3g}"
            )
        if "statistical" in guilty:
            return alarm_reason(max(self.sampled, key=lambda part: part.biased))
        if not self.exact_findings():
            return "; ".join(map(visible_bias, self.sampled))
        return f"no exact probability is off by more than {self.deviation:.1e}"

    def replay(self) -> Case:
        """Work out the worst exact case again, from its printed numbers."""
        if self.exact is None or isinstance(self.subject, Sampler):
            raise ValueError("only an exact finding can be replayed; a sampler has none")
        worst = self.exact.worst
        target, draft = (torch.tensor(values, dtype=torch.float64) for values in (worst.target, worst.draft))
        return examine(self.subject, worst.label, target, draft)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON, which has no infinity: that becomes null."""
        law = self.subject.law
        numbers = {
            "name": self.subject.name,
            "law": law.name,
            "drafts": law.drafts,
            "draft_probability": law.draft_probability,
            "verdict": self.verdict,
            "biased": self.biased,
            "guilty": self.guilty(),
            "sentence": self.sentence,
            "deviation": self.deviation,
            "total_variation": self.total_variation,
            "false_alarm_odds": self.odds,
            "stated_deviation": self.within,
            "exact": asdict(self.exact) if self.exact else None,
            "statistical": [asdict(part) | {"biased": part.biased} for part in self.sampled],
            "walks": [asdict(part) for part in self.walks],
        }
        plain: dict[str, Any] = json.loads(json.dumps(numbers), parse_constant=lambda _: None)
        return plain

    def __str__(self) -> str:
        return self.sentence


def describe_case(case: Case) -> str:
    """A case on one line, with the numbers to see it again."""
    drafts = ", ".join(f"{tokens} ({weight:.3g})" for tokens, weight in case.drafts)
    return (
        f"total variation {case.total_variation:.2g} from target={case.target} with draft={case.draft}, where the "
        f"law is {[float(f'{value:.4g}') for value in case.law]}; drafts with their probabilities: {drafts}"
        + (f"; outcomes that are no law, off by {case.impossible:.2g}" if case.impossible > EXACT_ERROR else "")
    )


def alarm_reason(part: Sampled) -> str:
    """Why the statistical part raised the alarm."""
    if part.out_of_range:
        return f"{part.out_of_range} of {part.trials} emitted ids are no tokens of the {part.vocabulary}"
    least = min(part.p_values.values())
    if not least < part.alarm:
        return f"at {part.vocabulary} tokens outcomes are no laws, off by {part.impossible:.2g}"
    return (
        f"bets on {part.trials:,} draws of {part.vocabulary:,} tokens win {1 / max(least, 1e-300):.1e} times their "
        f"stakes; with a lossless verifier they win {1 / part.alarm:.1e} times with a probability of {part.alarm:.1e}"
    )


def visible_bias(part: Sampled) -> str:
    """What the statistical part would have seen."""
    seen = "are too few to see any bias towards the draft"
    if part.smallest_bias is not None:
        bias = f"{part.smallest_bias:.2%} total variation towards the draft"
        seen = f"would show a bias of {bias} with 99 % probability"
    return f"{part.trials:,} draws of {part.vocabulary:,} tokens {seen}"
