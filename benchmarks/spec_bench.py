"""Speed on a model that people know and on real prompts: everyone decodes the same prompts by turns, task by task.

    python benchmarks/spec_bench.py runs/spec.jsonl --prompts spec_bench.jsonl
    python benchmarks/spec_bench.py runs/spec_q4.jsonl --prompts spec_bench.jsonl --engine llama.cpp --target q4_0.gguf
    python benchmarks/spec_bench.py runs/all.jsonl --prompts spec_bench.jsonl --engine transformers ik_llama.cpp \\
        llama.cpp=q8_0.gguf --server vllm=http://127.0.0.1:8000
    python benchmarks/spec_bench.py --show runs/spec.jsonl    # the table, also of an unfinished file
    python benchmarks/spec_bench.py --plot speed.svg --show runs/spec.jsonl --over '`model.generate`'

Each contestant takes its turn on a prompt before the next prompt comes, so that a noisy machine hits all alike. Every
run is a line of the file as soon as it is done; the same command continues where one was stopped. Prompts go through
the model's chat template. Texts end where the model ends them, so tokens differ between contestants at T > 0. Speeds
are tokens over seconds, prompts included. Where other work shares the machine, one thread and the seconds of its
processor (`--threads 1`, `--processor`) say more than the clock. Intervals are 95 % of the bootstrap over prompts.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np
import torch
from multidraft_research.studies import pictures
from rich.console import Console
from rich.table import Table
from spec_contestants import contestants
from tqdm import tqdm

from multidraft.cli.engines import ENGINES, TRANSFORMERS
from multidraft.errors import AdviceError
from multidraft.io.journal import Journal
from multidraft.machine import commit, hardware, versions

RESAMPLES = 2000
Run = dict[str, Any]
Bar = tuple[str, float, float, float]  # a contestant, its ratio, and the ratio's interval


def chosen(path: Path, per_category: int) -> list[dict[str, str]]:
    """The first prompts of every task, tasks by turns."""
    by_task = defaultdict[str, list[dict[str, str]]](list)
    for line in path.read_text().splitlines():
        prompt = json.loads(line)
        by_task[prompt["task"].split("/")[0]].append(prompt | {"task": prompt["task"].split("/")[0]})
    rounds = zip(*(prompts[:per_category] for prompts in by_task.values()), strict=True)
    return [prompt for each_round in rounds for prompt in each_round]


def settings_of(options: argparse.Namespace, prompts: list[dict[str, str]]) -> dict[str, Any]:
    """The head of the file: what results depend on."""
    machine = dict(hardware=hardware(), versions=versions(), commit=commit(), threads=options.threads)
    settings = dict(
        target=Path(options.target).name,
        engine=", ".join(engine.split("=")[0] for engine in options.engine),
        new_tokens=options.new_tokens,
        temperatures=options.temperature,
    )
    return dict(benchmark="spec_bench") | machine | settings | dict(prompts=[prompt["id"] for prompt in prompts])


def timed(decode: Callable[[list[int], float, int], Run], ids: list[int], temperature: float, seed: int) -> Run:
    """A contestant's run with its seconds of wall-clock, and of the processor."""
    start, computed = perf_counter(), process_time()
    run = decode(ids, temperature, seed)
    return run | dict(seconds=round(perf_counter() - start, 4), processor=round(process_time() - computed, 4))


def measure(options: argparse.Namespace) -> Path:
    """Run what the file does not have yet."""
    torch.set_num_threads(options.threads)
    prompts = chosen(options.prompts, options.each)
    journal = Journal(options.out, settings_of(options, prompts))
    tokenizer, all_of_them = contestants(
        options.target, options.engine, options.server, options.new_tokens, options.only
    )
    names = [name for name in all_of_them if not options.only or name in options.only]
    servers = {server.partition("=")[0] for server in options.server}
    done = {(run["id"], run["temperature"], run["who"]) for run in journal.records}
    turns = [(p, t, name) for t in options.temperature for p in prompts for name in names]
    left = [turn for turn in turns if (turn[0]["id"], turn[1], turn[2]) not in done]
    for name in names if left else []:
        all_of_them[name](tokenizer("Say hello."), 0.7, 0)  # loops are compiled, pages are read
    for number, (prompt, temperature, name) in enumerate(tqdm(left, desc="decoding", leave=False)):
        run = timed(all_of_them[name], tokenizer(prompt["prompt"]), temperature, number)
        place = dict(id=prompt["id"], task=prompt["task"], temperature=temperature, who=name)
        journal.append(place | run | dict(day=datetime.now(UTC).date().isoformat()))
        if name in servers:
            sleep(options.settling_seconds)
    return options.out


def read(path: Path, processor: bool) -> tuple[dict[str, Any], list[Run]]:
    """Settings and runs of a file, whose seconds are those of the processor if that is asked for."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    if not lines or lines[0].get("benchmark") != "spec_bench":
        raise AdviceError(f"{path} holds no results of benchmarks/spec_bench.py")
    return lines[0], [run | dict(seconds=run["processor"]) for run in lines[1:]] if processor else lines[1:]


def ratios(runs: list[Run], who: str, over: str) -> tuple[float, float, float] | None:
    """Tokens a second of one over the other's, with its interval; prompts that both have decoded, if there are any."""
    pairs = defaultdict[str, dict[str, Run]](dict)
    for run in runs:
        pairs[run["id"]][run["who"]] = run
    pairs_of_both = [pair for pair in pairs.values() if who in pair and over in pair]
    if not pairs_of_both:
        return None
    totals = np.array(
        [[pair[name][what] for name in (who, over) for what in ("tokens", "seconds")] for pair in pairs_of_both]
    )
    draws = np.random.default_rng(0).multinomial(
        len(pairs_of_both), np.full(len(pairs_of_both), 1 / len(pairs_of_both)), RESAMPLES
    )
    sums = np.vstack([np.ones(len(pairs_of_both)), draws]) @ totals
    ratio = (sums[:, 0] / sums[:, 1]) / (sums[:, 2] / sums[:, 3])
    return float(ratio[0]), *map(float, np.quantile(ratio[1:], [0.025, 0.975]))


def cell(runs: list[Run], who: str, over: str, whole: bool = False) -> str:
    """A ratio as the table has it."""
    interval = ratios(runs, who, over)
    if interval is None:
        return ""
    ratio, low, high = interval
    return f"{ratio:.2f} ({low:.2f}-{high:.2f})" if whole else f"{ratio:.2f}"


def rows_of(settings: dict[str, Any], runs: list[Run], over: str | None) -> tuple[list[str], list[list[str]]]:
    """A line for each temperature and contestant: tokens a second, ratio over one in all and by task, acceptance."""
    tasks, names = list(dict.fromkeys(r["task"] for r in runs)), list(dict.fromkeys(r["who"] for r in runs))
    over = over or next(iter(names), "plain")
    if names and over not in names:
        raise AdviceError(f"--over {over!r} has not been measured; there are {', '.join(names)}")
    columns, rows = ["T", "who", "tokens/s", f"over {over}", *tasks, "tokens a pass", "accepted / optimum"], []
    for temperature in settings["temperatures"]:
        runs_here = [run for run in runs if run["temperature"] == temperature]
        for who in [name for name in names if any(run["who"] == name for run in runs_here)]:
            mine = [run for run in runs_here if run["who"] == who]
            speed = sum(r["tokens"] for r in mine) / sum(r["seconds"] for r in mine)
            by_task = [cell([run for run in runs_here if run["task"] == task], who, over) for task in tasks]
            row = [f"{temperature:g}", who, f"{speed:.1f}", cell(runs_here, who, over, True), *by_task]
            rows.append([*row, *drafting(mine)])
    return columns, rows


def drafting(runs: list[Run]) -> list[str]:
    """Tokens a pass, and acceptance beside its optimum, where a contestant tells."""
    passes = sum(run.get("passes") or 0 for run in runs)
    accepted = [(run["acceptance"], run["optimum"]) for run in runs if run.get("optimum")]
    rates = " / ".join(f"{np.mean(rate):.2f}" for rate in zip(*accepted, strict=True)) if accepted else ""
    return [f"{sum(run['tokens'] for run in runs) / passes:.2f}" if passes else "", rates]


def markdown(path: Path, processor: bool, over: str | None) -> str:
    """The table for a page."""
    settings, runs = read(path, processor)
    columns, rows = rows_of(settings, runs, over)
    lines = [columns, ["---", "---", *["---:"] * (len(columns) - 2)], *rows]
    return "\n".join(["| " + " | ".join(line) + " |" for line in lines])


def heading(settings: dict[str, Any], runs: list[Run]) -> str:
    """What one needs to judge the numbers."""
    days = sorted({run["day"] for run in runs})
    count, length = len(settings["prompts"]), settings["new_tokens"]
    what = f"{settings['target']}, {settings['engine']}, {count} prompts of {length} tokens"
    machine = f"{settings['threads']} threads of {settings['hardware']['cpu']} with {settings['hardware']['vectors']}"
    return f"{what}, {machine}, commit {settings['commit']}, {' to '.join(days)}"


def show(path: Path, processor: bool, over: str | None) -> None:
    """The table in a terminal."""
    settings, runs = read(path, processor)
    columns, rows = rows_of(settings, runs, over)
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    Console(width=max(180, Console().width)).print(heading(settings, runs), table, sep="\n")


def panels_of(settings: dict[str, Any], runs: list[Run], over: str | None) -> dict[float, list[Bar]]:
    """By temperature the contestants that have a ratio by now; not the temperatures at which nobody has."""
    names, panels = list(dict.fromkeys(run["who"] for run in runs)), dict[float, list[Bar]]()
    for temperature in settings["temperatures"] if names else []:
        runs_here = [run for run in runs if run["temperature"] == temperature]
        ratios_of_all = [(who, ratios(runs_here, who, over or names[0])) for who in names]
        if bars := [(who, *ratio) for who, ratio in ratios_of_all if ratio is not None]:
            panels[temperature] = bars
    return panels


def plot(path: Path, picture: Path, processor: bool, over: str | None) -> None:
    """Ratios over one contestant in all tasks, with their intervals, a panel for each temperature."""
    settings, runs = read(path, processor)
    panels = panels_of(settings, runs, over)
    if not panels:
        raise AdviceError(f"{path} has no runs to draw yet; the command that measures goes on where it was stopped")
    drawn, axes = pictures.figure(len(panels), width=4.0, height=2.2)
    widest = 1.25 * max(high for bars in panels.values() for *_, high in bars)  # one scale, with room for the numbers
    for axis, (temperature, ratios_of_panel) in zip(axes[0], panels.items(), strict=True):
        labels, means, lows, highs = zip(*ratios_of_panel, strict=True)
        beside = np.array([np.subtract(means, lows), np.subtract(highs, means)])
        axis.barh([name.strip("`") for name in labels], means, xerr=beside, color=pictures.COLOURS[: len(labels)])
        for at, (mean, high) in enumerate(zip(means, highs, strict=True)):
            axis.text(high + 0.02 * widest, at, f"{mean:.2f}", va="center")
        axis.set_xlim(0, widest)
        axis.invert_yaxis()
        axis.set_title(f"temperature {temperature:g}", fontsize=10)
    base = (over or runs[0]["who"]).strip("`")
    drawn.supxlabel(f"speed over {base}, 95 % over prompts\n{heading(settings, runs)}", fontsize=6)
    pictures.save(drawn, picture)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", help="JSON lines; the same command continues with what is there")
    parser.add_argument("--show", type=Path, metavar="FILE", help="measure nothing: the table of a file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="measure nothing: the table for a page")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="with --show: draw the ratios")
    parser.add_argument("--over", metavar="WHO", help="whose speed the ratios are over; left out, the first one's")
    parser.add_argument("--processor", action="store_true", help="show seconds of the processor, not of the clock")
    parser.add_argument("--prompts", type=Path, help='one {"id", "task", "prompt"} a line, such as Spec-Bench')
    parser.add_argument("--each", type=int, default=8, help="prompts of each task")
    parser.add_argument("--target", default="smollm2", help="also a GGUF file of the same model in another type")
    parser.add_argument("--engine", nargs="+", default=[TRANSFORMERS], help="several, also as ENGINE=FILE")
    parser.add_argument("--server", nargs="+", default=[], metavar="NAME=URL", help="servers of the same model")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.7, 1.0])
    parser.add_argument("--max-new-tokens", dest="new_tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--settling-seconds",
        type=float,
        default=1.0,
        help="after a server's answer, while its threads may go on waiting actively",
    )
    parser.add_argument("--only", nargs="+", help="names of contestants")
    options = parser.parse_args(words)
    if sum(way is not None for way in (options.out, options.show, options.markdown)) != 1:
        parser.error("name a file to measure into, or one to --show")
    for engine in options.engine:
        if engine.split("=")[0] not in ENGINES:
            parser.error(f"there is no engine {engine!r}; use {', '.join(ENGINES)}")
    if options.out and not options.prompts:
        parser.error("--prompts FILE is missing")
    return options


def main(words: list[str] | None = None) -> None:
    """Measure or show."""
    options = arguments(words)
    try:
        shown = options.processor, options.over
        if options.markdown:
            print(markdown(options.markdown, *shown))
        else:
            show(path := options.show or measure(options), *shown)
            if options.plot:
                plot(path, options.plot, *shown)
    except AdviceError as error:
        sys.exit(f"spec_bench.py: {error}")
    except KeyboardInterrupt:
        sys.exit("spec_bench.py: stopped; the same command continues")


if __name__ == "__main__":
    main()
