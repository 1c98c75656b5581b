"""What a study is: what it measures on a prompt, how that is shown, and what the paper says."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from multidraft.zoo import Pair
from multidraft_research.captures.recording import Recording
from multidraft_research.captures.work import Passage
from multidraft_research.studies.running.cells import Cell, Estimate, Place, Sums, difference


@dataclass(frozen=True)
class Captured:
    """A prompt of a capture, with random numbers of its own; `drawn` is text that the target drew at temperature 1."""

    recording: Recording
    task: str
    generator: torch.Generator
    drawn: Int[Tensor, " positions"] | None = None
    schemes: Sequence[str] = ()  # to be compared beside those of the study
    prompt: Sequence[int] = ()
    answer: Sequence[int] = ()  # the text that was recorded, whoever wrote it


@dataclass(frozen=True)
class Decoding:
    """A prompt to decode, so many tokens of it."""

    pair: Pair
    passage: Passage
    new_tokens: int
    seed: int
    schemes: Sequence[str] = ()  # to be compared beside those of the study


@dataclass(frozen=True)
class Panel:
    """How a table and its chart are shown: entries times `scale`, and the name of what runs along the columns."""

    title: str
    columns: str
    scale: float = 1.0
    digits: int = 2
    logarithmic: bool = False


@dataclass(frozen=True)
class Finding:
    """What a paper reports, as a comparison that our numbers can confirm: one entry is above another."""

    text: str
    above: Place
    below: Place


@dataclass(frozen=True)
class Study:
    """One study: what it measures, `on_capture` or `on_models`, and how the entries of its tables are shown."""

    paper: str
    panels: dict[str, Panel]
    on_capture: Callable[[Captured], Iterator[Cell]] | None = None
    on_models: Callable[[Decoding], Iterator[Cell]] | None = None
    printed: tuple[str, ...] = ()  # names of files in `printed`
    findings: tuple[Finding, ...] = ()
    drafts: int = 1  # at a node, at most
    compares: bool = False  # schemes, to which others may be added
    derived: Callable[[dict[Place, Sums]], dict[Place, Sums]] = dict  # from what was measured to what is shown
    cases: str | None = "prompts"  # what intervals are over; None if the entries are exact


@dataclass(frozen=True)
class Judged:
    """A finding, the paired difference that it is about, and what the 95 % interval says of it."""

    finding: Finding
    gap: Estimate
    verdict: str


def judge_findings(study: Study, sums_by_place: dict[Place, Sums]) -> list[Judged]:
    """Every finding whose entries there are, for the same prompts."""
    keys = {place: sums_of_place.keys() for place, sums_of_place in sums_by_place.items()}
    known = [f for f in study.findings if f.above in keys and keys[f.above] == keys.get(f.below)]
    gaps = [difference(sums_by_place[finding.above], sums_by_place[finding.below]) for finding in known]
    return [Judged(finding, gap, verdict(gap)) for finding, gap in zip(known, gaps, strict=True)]


def verdict(gap: Estimate) -> str:
    """Shown, contradicted, or neither.

    >>> verdict(Estimate(0.1, 0.01, 9)), verdict(Estimate(-0.1, 0.1, 9)), verdict(Estimate(0.0, 0.0, 9))
    ('shown', 'undecided', 'equal')
    """
    if gap.interval is None:
        return "undecided"
    low, high = gap.interval
    if max(abs(low), abs(high)) < 1e-9:
        return "equal"
    return "shown" if low > 0 else "contradicted" if high < 0 else "undecided"
