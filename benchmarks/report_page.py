"""Print the tables of results/report.md from a run of `multidraft study all`.

python benchmarks/report_page.py runs/all
"""

import json
import sys
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

from multidraft_research.studies.listed import LISTED
from multidraft_research.studies.on_captures.multi_step_error import DEVIATION
from multidraft_research.studies.on_captures.randomised import RENEWAL
from multidraft_research.studies.on_captures.rates import RATE
from multidraft_research.studies.on_cases import walks
from multidraft_research.studies.on_models.runs import EFFICIENCY
from multidraft_research.studies.running.results import Results
from multidraft_research.studies.running.study import Study


class Part(NamedTuple):
    """A table of the page: the study and panel that it is of, its heading, and what is said of it."""

    study: str
    panel: str
    heading: str
    about: str


PARTS = [
    Part("acceptance", RATE, "Acceptance, by task", "Per cent at T = 0.7, 3 drafts (Towards Optimal MDSD, Table 1)."),
    Part("temperature", RATE, "Acceptance, by temperature", "Per cent, 3 drafts (its Figure 1)."),
    Part("drafts", RATE, "Acceptance, by number of drafts", "Per cent at T = 0.7 (its Figure 2)."),
    Part("candidates", RATE, "Candidates", "Per cent (Multi-Candidate SD, Figure 3)."),
    Part(
        "greedy-or-iid",
        RATE,
        "i.i.d. or greedy",
        "The optimum at T = 1, per cent, with the draft cut to its top k (Global Resolution, Figures 2 and 3).",
    ),
    Part(
        "multi-step-error",
        DEVIATION,
        "Several steps of Global Resolution",
        "The 1-norm between the distribution of several emitted tokens and the target's; 3 i.i.d. drafts from the top "
        "10 (its Theorem R.1). At each position the distribution is a sum over everything that can be drafted; the "
        "texts are those that the target drew.",
    ),
    Part(
        "randomised",
        RENEWAL,
        "Drafting at random",
        "Tokens per time of a target pass, in the long run (Randomised Drafting, Figure 4).",
    ),
    Part(
        "walks",
        walks.ACCEPTED,
        "Walks",
        "Accepted tokens a target pass over random pairs of tables, exactly (Towards Optimal MDSD, Figure 3).",
    ),
    Part(
        "multi-step",
        EFFICIENCY,
        "Several steps, decoded",
        "Tokens a target pass, i.i.d. paths of 4 from the top 10 (Global Resolution, Table 4).",
    ),
    Part("blocks", EFFICIENCY, "Blocks", "Tokens a target pass, K paths of L tokens, T = 1 (SpecTr, Table 1)."),
    Part("trees", EFFICIENCY, "Trees", "Tokens a target pass (Towards Optimal MDSD, Table 3)."),
]


def main() -> None:
    """All tables, one after another."""
    for part in PARTS:
        print(f"\n## {part.heading}\n\n{fill(part.about, 118, break_on_hyphens=False)}\n")
        for row in rows(part, Path(sys.argv[1])):
            print(f"| {' | '.join(row)} |")


def rows(part: Part, folder: Path) -> list[list[str]]:
    """A table, as the report has it."""
    study = study_of(part)
    records = [json.loads(line) for line in (folder / f"{part.study}.jsonl").read_text().splitlines()[1:]]
    [table] = [
        candidate for candidate in Results.of(study, records, {}).tables if candidate.panel is study.panels[part.panel]
    ]
    head, body = table.strings()
    return [head, ["---", *["---:"] * (len(head) - 1)], *body]


def study_of(part: Part) -> Study:
    """One of those over prompts, or that of random tables."""
    return LISTED[part.study].study() if part.study in LISTED else walks.STUDY


if __name__ == "__main__":
    main()
