"""The judge's action: its step as GitHub runs it, in an environment without multidraft."""

import json
from pathlib import Path

from conftest import NAME, PROGRAM, ZOO, served

FAULTY = """
import sys

sys.path.append("benchmarks")
from judge_faults import FAULTS, built_in
from multidraft.cli.main import main

with built_in(FAULTS["typical acceptance"]):
    main()
"""


def judged(run, url: str, code: int, folder: Path) -> tuple[str, dict]:
    """The summary of the job and the report, where the step ends with this code."""
    variables = {"INPUT_URL": url, "INPUT_MODEL": NAME, "INPUT_FAIL_ON": "guilty,unjudged"}
    variables |= {"INPUT_BUDGET_TOKENS": "1500" if code == 0 else "20000"}
    run("python", "-m", "multidraft_judge.ci", code=code, **variables, GITHUB_STEP_SUMMARY=str(folder / "summary.md"))
    assert (folder / "judged" / "evidence.svg").exists()
    return (folder / "summary.md").read_text(), json.loads((folder / "judged" / "report.json").read_text())


def test_the_action_is_green(run, url, tmp_path):
    """False alarm with odds of 1e-6 at most."""
    summary, report = judged(run, url, 0, tmp_path)
    assert summary.startswith("## multidraft-judge: nothing found in ")
    assert report["bets"][0]["tokens"] >= 1000


def test_the_action_is_red_where_drafts_are_accepted_too_easily(run, tmp_path):
    """Our own server, which accepts whatever the target likes enough."""
    python = [PROGRAM.parent / "python", "-c", FAULTY]
    with served(python, "--target", ZOO / "target", "--scheme", "iid:lorenz", "--tree", "1x1") as url:
        summary, report = judged(run, url, 1, tmp_path)
    assert summary.startswith("## multidraft-judge: **guilty** in ")
    assert report["reasons"] == ["its tokens are not drawn from the law that it reports"]
