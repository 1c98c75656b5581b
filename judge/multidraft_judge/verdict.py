"""The verdict on a sampler: what was found, how much evidence there is, and what would have been found."""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from multidraft_judge.errors import AdviceError, optional
from multidraft_judge.evidence.bets import Evidence
from multidraft_judge.evidence.forms import Forms
from multidraft_judge.evidence.places import Place
from multidraft_judge.evidence.scores import FIXED_NAMES

MAX_POINTS = 2000  # of a curve in a report or a picture
MAX_PLACES = 20  # that a report lists
LEAST_SHOWN = 0.05  # evidence, in powers of ten, that is not written as 0.0
PICTURE_SUFFIXES = (".svg", ".png", ".pdf")


@dataclass(frozen=True)
class Bets:
    """The evidence of bets against one law: the server's own, or a reference's. Evidence is in powers of ten."""

    law: str  # "reported" or "reference"
    rounding: float  # factor by which probabilities may be off
    threshold: float
    tokens: int
    entropy: float  # nats a token: how much there was to bet on
    open_tokens: int  # whose laws were uncertain
    highest: float
    found_after: int | None  # tokens
    by_bet: dict[str, dict[str, float]]  # by stratum and score
    smallest_bias: dict[str, float | None]  # that so many tokens would have shown with 95 %
    curve: list[tuple[int, float]]

    @classmethod
    def of(cls, law: str, evidence: Evidence, alpha: float) -> "Bets":
        """A report of the evidence."""
        by_bet: dict[str, dict[str, float]] = {stratum: {} for stratum in evidence.strata}
        for (stratum, score), value in evidence.by_bet().items():
            by_bet[stratum][score] = value / math.log(10)
        step = max(1, len(evidence.curve) // MAX_POINTS)
        curve = [(i, evidence.curve[i] / math.log(10)) for i in range(0, len(evidence.curve), step)]
        return cls(
            law,
            evidence.rounding,
            -math.log10(alpha),
            evidence.tokens,
            evidence.entropy / max(evidence.tokens, 1),
            evidence.open_tokens,
            evidence.highest / math.log(10),
            evidence.tokens_until(alpha),
            by_bet,
            evidence.smallest_bias(alpha),
            curve,
        )

    @property
    def outcome(self) -> str:
        """What the bets have won, in words."""
        if self.highest < LEAST_SHOWN:
            return f"none: no bet has won (10^0.0, guilty from 10^{self.threshold:.1f})"
        won = f"10^{self.highest:.1f}, guilty from 10^{self.threshold:.1f}"
        return won if self.found_after is None else f"{won}: {self.strongest[1]}, {self.strongest[0]}"

    @property
    def strongest(self) -> tuple[str, str]:
        """The stratum and the score with the most evidence."""
        pairs = [(stratum, score) for stratum, values in self.by_bet.items() for score in values]
        return max(pairs, key=lambda pair: self.by_bet[pair[0]][pair[1]])


@dataclass(frozen=True)
class Compared:
    """Token by token against a reference."""

    tokens: int
    rounding: float  # the largest difference of log-probabilities of the reference from itself
    tolerance: float
    places: list[Place]  # that differ by more
    texts_found: int  # with two places or more
    skipped_texts: int  # whose tokens are not known for sure


@dataclass(frozen=True, repr=False)
class Verdict:
    """What an audit of a sampler has found; `reasons` are empty if it is innocent as far as was looked."""

    subject: str
    settings: dict[str, Any]
    alpha: float  # the probability of convicting an innocent sampler, at most
    tokens: int
    texts: int
    reasons: list[str]
    bets: list[Bets]
    greedy_tokens: int
    greedy_places: list[Place]
    compared: Compared | None = None
    repeats: dict[str, int] = field(default_factory=dict)  # requests with a seed asked twice, and how many were equal
    forms: Forms | None = None  # where answers were asked to have one

    def __repr__(self) -> str:
        """In short, as where an assert fails: all else would be thousands of numbers."""
        outcome = f"guilty: {'; '.join(self.reasons)}" if self.guilty else "nothing found"
        return f"<Verdict, odds of a false alarm {self.alpha:g}, {self.tokens:,} tokens, {outcome}>"

    @property
    def guilty(self) -> bool:
        """Whether the tokens do not have the law that they should have."""
        return bool(self.reasons)

    @property
    def innocent(self) -> bool:
        """Whether nothing was found, which is no proof: a smaller bias than `smallest_bias` may be there."""
        return not self.guilty

    def smallest_bias(self, score: str) -> float | None:
        """The smallest bias by a fixed score that the tokens would have shown with 95 %; None of too few tokens."""
        shifts = [bets.smallest_bias[score] for bets in self.bets if bets.tokens]
        return min((shift for shift in shifts if shift is not None), default=None)

    def as_json(self) -> dict[str, Any]:
        """All of it, for `--json`."""
        return {"guilty": self.guilty} | asdict(self)

    def rows(self) -> list[list[str]]:
        """The table for people: what was looked at, tokens, what was found."""
        rows = [
            row
            for bets in self.bets
            if bets.tokens
            for row in (
                [f"bets against the {bets.law} law", f"{bets.tokens:,}", bets.outcome],
                [f"open in the {bets.law} law", f"{bets.open_tokens:,}", f"{bets.entropy:.3f} nats a token"],
            )
        ]
        if self.compared is not None:
            difference = f"{len(self.compared.places)} differ by more than {self.compared.tolerance:.2g}"
            if self.compared.skipped_texts:
                difference += f"; {self.compared.skipped_texts} texts left out, which it reads as other tokens"
            rows.append(["log-probabilities, reference", f"{self.compared.tokens:,}", difference])
        outcome = f"{len(self.greedy_places)} are not the likeliest" if self.greedy_tokens else "not tried"
        rows.append(["greedy tokens", f"{self.greedy_tokens:,}", outcome])
        if self.forms is not None:
            outcome = f"{len(self.forms.broken)} of {self.forms.texts} texts leave the form"
            rows.append(["answers in a form", f"{self.forms.tokens:,}", outcome])
        if self.repeats:
            rows.append(["seeds", "", f"{self.repeats['equal']} of {self.repeats['asked']} repeated texts are equal"])
        for score in FIXED_NAMES:
            if score != "surprise" and any(bets.tokens for bets in self.bets):
                least = self.smallest_bias(score)
                what = "none: too few tokens" if least is None else f"{least:.3f}"
                rows.append([f"smallest bias found with 95 %: {score}", "", what])
        return rows

    def draw(self, path: Path) -> None:
        """A picture of the evidence over tokens, with the line from which a sampler is guilty."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 3.2), layout="constrained", dpi=110)
        axis = figure.subplots()
        for bets in self.bets:
            axis.plot(*map(list, zip(*bets.curve, strict=True)), label=f"against the {bets.law} law")
        for threshold in {bets.threshold for bets in self.bets}:
            axis.axhline(threshold, ls="--", color="#888888", lw=1, label="guilty")
        found = "guilty" if self.guilty else "nothing found"
        axis.set_title(f"{self.subject}: {found} in {self.tokens:,} tokens", fontsize="medium")
        axis.set(xlabel="tokens", ylabel="evidence, powers of ten")
        axis.legend(frameon=False, fontsize="small")
        figure.savefig(path)


def check_picture(path: Path) -> None:
    """Raise AdviceError if no picture can be written to a path; called before anything is asked."""
    optional("matplotlib", "run pip install 'matplotlib>=3.8'")
    if path.suffix not in PICTURE_SUFFIXES:
        raise AdviceError(
            f"a picture cannot be written to {str(path)!r}; end its name in {', '.join(PICTURE_SUFFIXES)}"
        )
    if path.is_dir() or not path.parent.is_dir():
        raise AdviceError(f"a picture cannot be written to {str(path)!r}; give a file's name in a folder that is there")
