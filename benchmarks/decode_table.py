"""What `decode.py` measured, for people: a table with intervals, the sentences that it supports, a picture.

A speed is a ratio of tokens a second of wall-clock time, prompt included, in one run. The bootstrap draws prompts, each
with all of its seeds, because runs of one prompt are alike; an interval holds 95 % of it. "The best" of several
settings is chosen anew in every resample, so that its interval also covers the choice.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from contestants import ASSISTED, DEFAULT, PLAIN, THEIRS, Case
from multidraft_research.studies import pictures

from multidraft.errors import AdviceError
from multidraft.io import journal

RESAMPLES = 2000
MARKS = "<!-- decode: made by benchmarks/decode.py --into -->", "<!-- /decode -->"


@dataclass
class Rates:
    """Tokens a second at one temperature; the first row is what was measured, each other one a resample."""

    temperature: float
    cases: list[Case]
    of: np.ndarray  # (1 + resamples, cases)
    runs: dict[Case, list[dict[str, Any]]]

    def __getitem__(self, case: Case) -> np.ndarray:
        return self.of[:, self.cases.index(case)]

    def best(self, among: Callable[[Case], bool]) -> tuple[Case, np.ndarray] | None:
        """The fastest of some cases, and its rate; in each resample that of the fastest there."""
        chosen = [i for i, case in enumerate(self.cases) if among(case)]
        return (self.cases[max(chosen, key=lambda i: self.of[0, i])], self.of[:, chosen].max(1)) if chosen else None

    def tokens_a_pass(self, case: Case) -> float | None:
        """Over all runs; None for transformers, which does not say."""
        passes = sum(run.get("passes", 0) for run in self.runs[case])
        return 1 + sum(run["accepted"] for run in self.runs[case]) / passes if passes else None

    def overhead(self, case: Case) -> float:
        """The share of the time that neither model takes."""
        total = sum(run["seconds"] for run in self.runs[case])
        return 1 - sum(run["draft"] + run["target"] for run in self.runs[case]) / total


def read(path: Path, benchmark: str = "decode") -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The settings and the runs of a file, which may still be growing."""
    advice = f"give a file that benchmarks/{benchmark}.py has written"
    lines = journal.read_records(journal.read_lines(path, "the results")[0], path, advice)
    if not lines or lines[0].get("benchmark") != benchmark:
        raise AdviceError(f"{path} holds no results; {advice}")
    return lines[0], lines[1:]


def rates_of(settings: dict[str, Any], runs: list[dict[str, Any]]) -> list[Rates]:
    """By temperature, from the turns in which every case has run; raises where there is none."""
    rates = rates_at(settings["temperatures"], settings["cases"], runs)
    if not rates:
        raise AdviceError("no prompt has been decoded by every case yet; let the benchmark go on")
    return rates


def rates_at(temperatures: list[float], known: list[list[str]], runs: list[dict[str, Any]]) -> list[Rates]:
    """The same at some temperatures; of none that has no such turn."""
    cases, turns = [Case(*case) for case in known], defaultdict[tuple, dict[Case, dict[str, Any]]](dict)
    for run in runs:
        turns[run["temperature"], run["seed"], run["turn"]][Case(*run["case"])] = run
    whole = {key: turn for key, turn in turns.items() if len(turn) == len(cases)}
    return [resampled(t, cases, whole) for t in temperatures if any(key[0] == t for key in whole)]


def resampled(temperature: float, cases: list[Case], turns: dict[Any, dict[Case, dict[str, Any]]]) -> Rates:
    """The rates of one temperature with their bootstrap over prompts."""
    mine = {key: turn for key, turn in turns.items() if key[0] == temperature}
    prompts = sorted({key[2] for key in mine})
    totals = np.zeros((2, len(prompts), len(cases)))
    for (_, _, prompt), turn in mine.items():
        totals[:, prompts.index(prompt)] += [[turn[case][what] for case in cases] for what in ("tokens", "seconds")]
    drawn = np.random.default_rng(0).multinomial(len(prompts), [1 / len(prompts)] * len(prompts), RESAMPLES)
    counts = np.vstack([np.ones((1, len(prompts))), drawn])
    runs = {case: [turn[case] for turn in mine.values()] for case in cases}
    return Rates(temperature, cases, (counts @ totals[0]) / (counts @ totals[1]), runs)


def interval(values: np.ndarray) -> tuple[float, float]:
    """95 % of the resamples."""
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return float(low), float(high)


def with_interval(values: np.ndarray, form: str = ".2f") -> str:
    """A number, and its interval in brackets."""
    low, high = interval(values)
    return f"{values[0]:{form}} ({low:{form}} to {high:{form}})"


def is_ours(case: Case) -> bool:
    """Whether this library drafts."""
    return case not in (PLAIN, THEIRS) and case.who != ASSISTED


def is_fixed(case: Case) -> bool:
    """Whether it has the default scheme, walk and a tree that stays."""
    return case.who == DEFAULT.who and case.setting.endswith("deferred") and case != DEFAULT


def is_assisted(case: Case) -> bool:
    """Whether transformers drafts."""
    return case.who == ASSISTED


def heading(settings: dict[str, Any], runs: list[dict[str, Any]]) -> str:
    """What one needs to judge the numbers."""
    machine, version = settings["hardware"], settings["versions"]
    days = [run["day"] for run in runs]
    models = f"{settings['target']} with {settings['draft']}" if settings["target"] else "the embedded pair"
    models += f", the target with {settings['layers']} layers" if settings["layers"] else ""
    work = [counted(len(settings["prompts"]), "prompt"), counted(settings["seeds"], "seed")]
    work += [counted(settings["new_tokens"], "new token"), f"batches of {settings['batch']}"]
    where = [machine["gpu"] or machine["cpu"], machine["vectors"], counted(machine["threads"], "thread")]
    versions = [f"{package} {version[package]}" for package in ("torch", "transformers")]
    versions += [f"commit {settings['commit']}", " to ".join(dict.fromkeys((min(days), max(days))))]
    return "; ".join([models, ", ".join(work), ", ".join(where), ", ".join(versions)])


def counted(number: int, noun: str) -> str:
    """Such as "3 seeds"."""
    return f"{number} {noun}{'s' if number != 1 else ''}"


def rows_of(rates: list[Rates]) -> tuple[list[str], list[list[str]]]:
    """The table: a line a case, a column of speed over plain a temperature, tokens a pass and overhead at the last."""
    last = rates[-1]
    columns = ["who", "setting", f"tokens a pass, T = {last.temperature:g}", "time outside the models"]
    columns += [f"speed, T = {rate.temperature:g}" for rate in rates]
    rows = []
    for case in last.cases:
        passes = last.tokens_a_pass(case)
        drafts = [f"{passes:.2f}", f"{last.overhead(case):.0%}"] if passes else ["", ""]
        speeds = ["1" if case == PLAIN else with_interval(rate[case] / rate[PLAIN]) for rate in rates]
        rows.append([*case, *drafts, *speeds])
    return columns, rows


def sentences(rate: Rates) -> list[str]:
    """What can be said at one temperature, each ratio with its interval."""
    where, plain = f"T = {rate.temperature:g}", rate[PLAIN]
    ours, assisted = rate.best(is_ours), rate.best(is_assisted)
    lines = [f"{where}: plain decoding makes {with_interval(plain, '.0f')} tokens a second."]
    if DEFAULT in rate.cases:
        default = rate[DEFAULT]
        lines.append(f"{where}: the default runs at {with_interval(default / plain)} times plain decoding.")
        if fixed := rate.best(is_fixed):
            name, best = fixed
            lines.append(
                f"{where}: the default over the best fixed tree, {name.setting}: {with_interval(default / best)}."
            )
    if ours:
        lines.append(f"{where}: ours at its best, {' '.join(ours[0])}: {with_interval(ours[1] / plain)} times plain.")
    if assisted:
        name, best = assisted
        lines.append(f"{where}: assisted generation at its best, {name.setting}: {with_interval(best / plain)} times.")
        if ours:
            lines.append(f"{where}: best over best: {with_interval(ours[1] / best)}.")
        if DEFAULT in rate.cases:
            lines.append(
                f"{where}: our default over assisted generation's best: {with_interval(rate[DEFAULT] / best)}."
            )
    return lines


def over(paths: list[Path]) -> list[str]:
    """The default against every fixed tree, in geometric means over all files and temperatures.

    Files are resampled on their own, and the fixed tree that is best on the average is chosen anew in every resample.
    """
    rates = [rate for path in paths for rate in rates_of(*read(path))]
    cases = [case for case in rates[0].cases if is_fixed(case) and all(case in rate.cases for rate in rates)]
    gains = {case: mean_of([rate[DEFAULT] / rate[case] for rate in rates]) for case in cases}
    least = np.min(list(gains.values()), 0)
    lines = [f"{case.setting}: {with_interval(gain, '.3f')}" for case, gain in gains.items()]
    return [*lines, f"the fixed tree that is best on the average: {with_interval(least, '.3f')}"]


def mean_of(ratios: list[np.ndarray]) -> np.ndarray:
    """The geometric mean."""
    return np.exp(np.mean(np.log(ratios), 0))


def markdown(path: Path) -> str:
    """All of it, for a page."""
    settings, runs = read(path)
    rates = rates_of(settings, runs)
    columns, rows = rows_of(rates)
    names = [f"`{row[0]}`" if ":" in row[0] else row[0] for row in rows]
    rows = [[name, *row[1:]] for name, row in zip(names, rows, strict=True)]
    table = [columns, ["---", "---", *["---:"] * (len(columns) - 2)], *rows]
    lines = ["| " + " | ".join(row) + " |" for row in table]
    items = [f"- {line}" for rate in rates for line in sentences(rate)]
    return "\n".join([heading(settings, runs) + ".", "", *lines, "", *items])


def put_into(page: Path, text: str, marks: tuple[str, str] = MARKS) -> None:
    """Replace what stands between the marks of a page."""
    start, end = map(re.escape, marks)
    old = page.read_text()
    if not re.search(f"{start}.*{end}", old, re.DOTALL):
        raise AdviceError(f"{page} has no lines {marks[0]!r} and {marks[1]!r}; add them where the table shall stand")
    replacement = f"{marks[0]}\n\n{text}\n\n{marks[1]}"
    page.write_text(re.sub(f"{start}.*{end}", lambda _: replacement, old, flags=re.DOTALL))


def plot(path: Path, picture: Path) -> None:
    """Tokens a second of plain decoding, assisted generation at its best, and ours."""
    settings, runs = read(path)
    rates = rates_of(settings, runs)
    drawn, axes = pictures.figure(len(rates), width=4.0, height=2.6)
    for axis, rate in zip(axes[0], rates, strict=True):
        draw(axis, rate)
    words = heading(settings, runs).split("; ")
    drawn.supxlabel("\n".join(["; ".join(words[:2]), "; ".join(words[2:])]), fontsize=6)
    pictures.save(drawn, picture)


def draw(axis: Any, rate: Rates) -> None:
    """The bars of one temperature."""
    bars: list[tuple[str, np.ndarray]] = [("plain decoding", rate[PLAIN])]
    for name, best in (
        ("assisted generation,\nat its best", rate.best(is_assisted)),
        ("ours, at its best", rate.best(is_ours)),
    ):
        bars += [(name, best[1])] if best else []
    if DEFAULT in rate.cases:
        bars.insert(-1, ("ours, by default", rate[DEFAULT]))
    names, values = [name for name, _ in bars], [value[0] for _, value in bars]
    axis.barh(names, values, xerr=errors([value for _, value in bars]), color=pictures.COLOURS[: len(bars)])
    for at, value in enumerate(values):
        axis.text(values[0] * 0.05, at, f"{value:.0f}", va="center", color="white")
    axis.invert_yaxis()
    axis.set_title(f"temperature {rate.temperature:g}", fontsize=10)
    axis.set_xlabel("tokens a second, 95 % over prompts", fontsize=8)


def errors(values: Sequence[np.ndarray]) -> np.ndarray:
    """How far the interval of each lies below and above it."""
    bounds = np.array([interval(value) for value in values]).T
    return np.abs(bounds - [value[0] for value in values])
