"""The judge's action: its step as GitHub runs it, in an environment without multidraft."""

import json

from conftest import NAME


def test_the_action_is_green(run, url, tmp_path):
    """False alarm with odds of 1e-6 at most; the same step is red for biased servers in judge/tests/test_ci.py."""
    summary = tmp_path / "summary.md"
    variables = {
        "INPUT_URL": url,
        "INPUT_MODEL": NAME,
        "INPUT_BUDGET_TOKENS": "1500",
        "INPUT_FAIL_ON": "guilty,unjudged",
    }
    run("python", "-m", "multidraft_judge.ci", **variables, GITHUB_STEP_SUMMARY=str(summary))
    assert summary.read_text().startswith("## multidraft-judge: nothing found in ")
    report = json.loads((tmp_path / "judged" / "report.json").read_text())
    assert report["bets"][0]["tokens"] >= 1000
    assert (tmp_path / "judged" / "evidence.svg").exists()
