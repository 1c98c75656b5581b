"""A study that was done with several drafts, as one: the rows of each, and whether a draft beats the one before it."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from multidraft_research.studies.running.cells import Place
from multidraft_research.studies.running.results import Results
from multidraft_research.studies.running.study import Finding, Study
from multidraft_research.studies.running.tables import label


def join_results(done: dict[str, Results]) -> Results:
    """All of it, by the names of the drafts; the prompts are the same, so differences are paired."""
    first = next(iter(done.values()))
    sums_by_place = {
        place_of(place, draft): sums_of_place
        for draft, results in done.items()
        for place, sums_of_place in results.sums_by_place.items()
    }
    study = replace(first.study, findings=tuple(findings(first.study, list(done))), derived=dict)
    return Results(study, first.settings | {"draft": list(done)}, sums_by_place)


def place_of(place: Place, draft: str) -> Place:
    """Where an entry is in the tables of several drafts."""
    panel, row, column = place
    return panel, f"{draft}: {row}", column


def findings(study: Study, drafts: list[str]) -> Iterator[Finding]:
    """What the paper reports, for each draft; then each draft beside the one before it, where the first finding is."""
    for draft in drafts:
        for finding in study.findings:
            yield Finding(f"{draft}: {finding.text}", place_of(finding.above, draft), place_of(finding.below, draft))
    for place in [place for finding in study.findings[:1] for place in (finding.above, finding.below)]:
        for below, above in pairwise(drafts):
            text = f"{above} is above {below}: {', '.join(map(label, place))}"
            yield Finding(text, place_of(place, above), place_of(place, below))
