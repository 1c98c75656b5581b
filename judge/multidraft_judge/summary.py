"""A verdict as Markdown, for the page on which a CI shows what its jobs have found."""

from multidraft_judge.errors import one_line
from multidraft_judge.evidence.scores import FIXED_NAMES
from multidraft_judge.verdict import Verdict

TITLE = "## multidraft-judge: "


def summary(verdict: Verdict) -> str:
    """What was found and where first, the smallest bias that would have been seen, and the table of the evidence."""
    outcome = "**guilty**" if verdict.guilty else "nothing found"
    lines = [f"{TITLE}{outcome} in {verdict.tokens:,} tokens of {verdict.texts:,} texts", ""]
    lines += [*code(verdict.subject, *verdict.reasons), "", bias_line(verdict), ""]
    lines += ["| looked at | tokens | found |", "|---|---:|---|"]
    lines += [f"| {' | '.join(row)} |" for row in verdict.rows()]
    return "\n".join([*lines, ""])


def bias_line(verdict: Verdict) -> str:
    """The smallest bias that would have been seen, and the odds of a false alarm."""
    shifts = [(verdict.smallest_bias(score), score) for score in FIXED_NAMES if score != "surprise"]
    biases = [(shift, score) for shift, score in shifts if shift is not None]
    seen = "Too few tokens were judged to see a bias of any size"
    if biases:
        least, score = min(biases)
        seen = f"The smallest bias that would have been seen with probability 95 %: {least:.3f} ({score})"
    return f"{seen}. The bets find an innocent server guilty with probability {verdict.alpha:g} at most."


def refusal(reason: str) -> str:
    """What stands in place of a summary where a server cannot be judged."""
    return "\n".join([f"{TITLE}cannot be judged", "", *code(reason), ""])


def code(*texts: str) -> list[str]:
    """Lines of code, in which nothing is Markdown: a server, or whoever names it, has written a part of them.

    >>> code("a\\n# b")
    ['    a # b']
    """
    return [f"    {one_line(text)}" for text in texts]
