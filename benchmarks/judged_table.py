"""Verdicts by engine and version: a line each in results/judged.jsonl, and the table of results/judged.md."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.version import Version

from multidraft.errors import AdviceError

BEGIN, END = "<!-- begin: table by version -->", "<!-- end: table by version -->"
Line = dict[str, Any]
CANNOT = "cannot be judged"
FILE, PAGE = "judged.jsonl", "judged.md"


def line_of(engine: str, version: str, drafts: str, kept: Line) -> Line:
    """The line of a verdict that was kept, or of why there is none."""
    verdict = kept.get("verdict")
    line = {"engine": engine, "version": version, "drafts": drafts, "temperature": kept["temperature"]}
    if verdict is None:
        line |= {"verdict": CANNOT, "tokens": 0, "evidence": cause(kept["error"])}
    else:
        powers = [bets["highest"] for bets in verdict["bets"] if bets["tokens"]]
        evidence = verdict["reasons"] or [f"bets 10^{max(powers):.1f}" if powers else "no greedy token is unlikely"]
        outcome = "guilty" if verdict["guilty"] else "nothing found"
        line |= {"verdict": outcome, "tokens": verdict["tokens"], "evidence": evidence[0]}
    hardware = {name: kept[name] for name in ("cpu", "vectors", "threads", "gpu") if name in kept}
    return line | {"day": kept["date"], "commit": kept["commit"], "hardware": hardware}


def cause(error: str) -> str:
    """An error without the name of the program that printed it, the server's address, and the place of a log.

    >>> cause("multidraft-judge: it gives no log-probabilities: none")
    'it gives no log-probabilities: none'
    >>> cause("the server 'x' did not begin (no wheel); see /tmp/x.log, or leave it out")
    "the server 'x' did not begin (no wheel)"
    >>> cause("http://127.0.0.1:46139 gives no log-probabilities")
    'the server gives no log-probabilities'
    """
    return re.sub(r"http://127\.0\.0\.1:\d+", "the server", re.sub(r"^multidraft(-judge)?: |; see /.*$", "", error))


def add_lines(folder: Path, lines: Iterable[Line]) -> None:
    """Add lines that are not there yet, and write the table anew."""
    file, page = folder / FILE, folder / PAGE
    known = read_lines(file)
    known += [line for line in lines if line not in known]
    file.write_text("".join(json.dumps(line) + "\n" for line in known))
    before, begin, from_table = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = from_table.partition(END)
    if not begin or not end:
        raise AdviceError(f"{page} has no table between {BEGIN} and {END}; put these lines where it should stand")
    page.write_text(f"{before}{BEGIN}\n\n{table(known)}\n\n{END}{after}", encoding="utf-8")


def read_lines(file: Path) -> list[Line]:
    """All lines so far."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def table(lines: Iterable[Line]) -> str:
    """One row for each engine, version and way to draft, with the latest verdict at each temperature."""
    rows: dict[tuple[str, str, str], dict[float, Line]] = {}
    for line in lines:
        rows.setdefault((line["engine"], line["version"], line["drafts"]), {})[line["temperature"]] = line
    temperatures = sorted({temperature for row in rows.values() for temperature in row})
    head = ["engine", "version", "drafts", *(f"T = {temperature:g}" for temperature in temperatures), "day, commit"]
    text = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for key, row in sorted(rows.items(), key=lambda item: (item[0][0], Version(item[0][1]), item[0][2])):
        latest = max(row.values(), key=lambda line: line["day"])
        cells = [cell(row[temperature]) if temperature in row else "" for temperature in temperatures]
        cells.append(f"{latest['day']}, {latest['commit']}")
        text.append(f"| {' | '.join([*key, *cells])} |")
    return "\n".join(text)


def cell(line: Line) -> str:
    """A verdict and its tokens.

    >>> cell({"verdict": "guilty", "tokens": 1619})
    '**guilty** (1,619)'
    """
    if line["verdict"] == CANNOT:
        return CANNOT
    verdict = f"**{line['verdict']}**" if line["verdict"] == "guilty" else line["verdict"]
    return f"{verdict} ({line['tokens']:,})"
