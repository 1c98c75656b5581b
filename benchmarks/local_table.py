"""What `local.py` measured, as tables: for each number of layers, type of weights and number of threads one."""

from pathlib import Path
from statistics import median
from typing import Any

from contestants import Case
from decode_table import Rates, counted, rates_at, read, with_interval

Run = dict[str, Any]


def markdown(path: Path, baseline: Case) -> str:
    """All tables, for a page."""
    head, runs = read(path, "local")
    settings = list(dict.fromkeys(tuple(run["setting"]) for run in runs))
    parts = [heading(head, runs), *(part for setting in settings for part in of_setting(head, runs, setting, baseline))]
    return "\n\n".join(parts)


def heading(head: Run, runs: list[Run]) -> str:
    """What one needs to judge the numbers."""
    days = sorted({run["day"] for run in runs if "day" in run})
    work = [counted(len(head["prompts"]), "prompt"), counted(head["seeds"], "seed")]
    work += [counted(head["new_tokens"], "new token")]
    made = [f"{package} {head['versions'][package]}" for package in ("llama_cpp_python", "torch")]
    where = [
        head["hardware"]["cpu"],
        *made,
        f"commit {head['commit']}",
        " to ".join(dict.fromkeys(days[:1] + days[-1:])),
    ]
    return f"The embedded pair; {', '.join(work)}; {', '.join(where)}."


def of_setting(head: Run, runs: list[Run], setting: tuple, baseline: Case) -> list[str]:
    """The tables of one number of layers, type and number of threads: speeds, and what passes cost."""
    layers, kind, threads = setting
    mine = [run for run in runs if tuple(run["setting"]) == setting]
    parts = [f"**{counted(layers, 'layer')}, {kind}, {counted(threads, 'thread')}**"]
    if rates := rates_at(head["temperature"], head["cases"], [run for run in mine if "case" in run]):
        parts.append(speeds(rates, baseline))
    parts += [passes(run["passes_of"]) for run in mine if "passes_of" in run]
    return parts


def speeds(rates: list[Rates], baseline: Case) -> str:
    """Tokens a second over the baseline's, with 95 % over prompts; of the baseline itself tokens a second."""
    rows = [["", "", *(f"T = {rate.temperature:g}" for rate in rates)], ["---", "---", *["---:"] * len(rates)]]
    for case in rates[0].cases:
        told = [
            f"{with_interval(rate[case], '.0f')} a second"
            if case == baseline
            else with_interval(rate[case] / rate[baseline])
            for rate in rates
        ]
        rows.append([f"`{case.who}`" if ":" in case.who else case.who, case.setting, *told])
    return table(rows)


def passes(times: dict[str, list[float]]) -> str:
    """Milliseconds of passes over so many tokens, and over those of one token."""
    medians = {count: 1e3 * median(own[1:]) for count, own in times.items()}
    rows = [
        ["tokens a pass", *medians],
        ["---", *["---:"] * len(medians)],
        ["ms", *(f"{value:.2f}" for value in medians.values())],
        ["over one token's", *(f"{value / medians['1']:.2f}" for value in medians.values())],
    ]
    return table(rows)


def table(rows: list[list[str]]) -> str:
    """Rows as Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
