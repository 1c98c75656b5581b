"""What the action for GitHub runs, `python -m multidraft_judge.ci`: inputs are variables, and files are left.

Each line on stdout is a command of GitHub's whose text is escaped: what a server writes can be no command.
"""

import json
import os
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multidraft_judge.command import BROKEN, CANNOT_JUDGE, GUILTY, STOPPED
from multidraft_judge.defaults import ALPHA, BUDGET_TOKENS
from multidraft_judge.errors import AdviceError, check_integer, one_line, quote
from multidraft_judge.judgement import judge
from multidraft_judge.summary import refusal, summary
from multidraft_judge.verdict import check_picture

CODES = {"innocent": 0, "guilty": GUILTY, "unjudged": CANNOT_JUDGE}
FAIL_ON = ("guilty", "unjudged", "never")


@dataclass(frozen=True)
class Inputs:
    """The inputs of the action; raises AdviceError on one that cannot be used, whatever `fail_on` says."""

    url: str
    model: str
    reference: str | None
    budget_tokens: int
    alpha: float
    api_key: str | None
    fail_on: frozenset[str]
    folder: Path

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> "Inputs":
        """Read `INPUT_URL` and its like; one that is not there, or empty, has its default."""

        def text(name: str, default: str = "") -> str:
            return variables.get(f"INPUT_{name}", "").strip() or default

        for name in ("URL", "MODEL"):
            if not text(name):
                raise AdviceError(f"the input {name.lower()} is empty; give the server's")
        budget, alpha = text("BUDGET_TOKENS", str(BUDGET_TOKENS)), number(text("ALPHA", str(ALPHA)))
        check_integer(int(budget) if budget.isdecimal() else budget, "budget-tokens", 1)
        if not 0 < alpha < 1:
            raise AdviceError(f"alpha is {quote(text('ALPHA'))}; use a number above 0 and below 1")
        folder = text("NAME", "judged")
        if not re.fullmatch(r"\w[\w.-]*", folder):
            raise AdviceError(f"name is {quote(folder)}; give one of letters, digits, dots and hyphens")
        if Path(folder).exists():  # the judge would go on with its answers, which may be of another server
            raise AdviceError(f"{folder!r} is there already; give another name, or remove it")
        return cls(
            text("URL"),
            text("MODEL"),
            text("REFERENCE") or None,
            int(budget),
            alpha,
            text("API_KEY") or None,
            outcomes(text("FAIL_ON", "guilty")),
            Path(folder),
        )


def number(text: str) -> float:
    """A number, or NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def outcomes(text: str) -> frozenset[str]:
    """The outcomes that fail the job.

    >>> sorted(outcomes("guilty, unjudged")), sorted(outcomes("never"))
    (['guilty', 'unjudged'], [])
    """
    names = [name.strip() for name in text.split(",")]
    if not set(names) <= set(FAIL_ON) or ("never" in names and len(names) > 1):
        raise AdviceError(f"fail-on is {quote(text)}; use guilty, or guilty,unjudged, or never")
    return frozenset(names) - {"never"}


def run(variables: Mapping[str, str]) -> int:
    """Judge, leave the files, and return the exit code."""
    inputs = Inputs.of(variables)
    inputs.folder.mkdir()
    check_picture(inputs.folder / "evidence.svg")
    try:
        verdict = judge(
            inputs.url,
            inputs.model,
            reference=inputs.reference,
            budget_tokens=inputs.budget_tokens,
            alpha=inputs.alpha,
            api_key=inputs.api_key,
            out=inputs.folder / "answers",
        )
    except AdviceError as error:
        outcome, text = "unjudged", refusal(str(error))
        report: dict[str, Any] = {"guilty": None, "unjudged": str(error)}
        notes = [f"cannot be judged: {error}"]
    else:
        outcome, text = "guilty" if verdict.guilty else "innocent", summary(verdict)
        report = verdict.as_json()
        notes = verdict.reasons or [f"nothing found in {verdict.tokens:,} tokens"]
    (inputs.folder / "report.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
    append(inputs.folder / "summary.md", text)
    append(variables.get("GITHUB_STEP_SUMMARY"), text)
    append(variables.get("GITHUB_OUTPUT"), f"verdict={outcome}\n")
    code = CODES[outcome] if outcome in inputs.fail_on else 0
    for note in notes:
        say("error" if code else "notice" if outcome == "innocent" else "warning", note)
    if outcome != "unjudged":  # last: a picture that fails must not hide the verdict
        verdict.draw(inputs.folder / "evidence.svg")
    return code


def append(path: str | Path | None, text: str) -> None:
    """Add a text to a file, if there is one to add to."""
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)


def say(level: str, text: str) -> None:
    """Print a line that GitHub shows on the job's page.

    >>> say("error", "100 %\\n::warning::x")
    ::error title=multidraft-judge::100 %25 ::warning::x
    """
    print(f"::{level} title=multidraft-judge::{one_line(text).replace('%', '%25')}", flush=True)


def main() -> None:
    """Run, with errors of one line."""
    try:
        sys.exit(run(os.environ))
    except (AdviceError, OSError) as error:
        say("error", str(error))
        sys.exit(CODES["unjudged"])
    except KeyboardInterrupt:
        sys.exit(STOPPED)
    except Exception:  # 1, Python's own code, is a verdict
        traceback.print_exc()
        sys.exit(BROKEN)


if __name__ == "__main__":
    main()
