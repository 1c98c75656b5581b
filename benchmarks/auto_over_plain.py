"""Whether `auto` is ever slower than no drafts: the ratio of our server's tokens a second with it and without.

    python benchmarks/auto_over_plain.py                                   # the embedded pair, some ten minutes
    python benchmarks/auto_over_plain.py --target smollm2 --engine transformers --draft copy+eagle3:smollm2
    python benchmarks/auto_over_plain.py --minutes 4 --clients 16 --temperature 0

For each temperature both servers begin twice: with an empty cache folder ("fresh"), and with the plan that the first
time has left ("kept"). They take turns at each number of clients, `--rounds` times, as long as `--minutes` lasts; the
ratio is that of all tokens to all seconds. Requests have no seed: a row with one drafts a fixed shape, whatever pays.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from serve import arguments as server_arguments
from serve import measured
from servers import ZOO, contestants, cores, running

from multidraft.errors import AdviceError
from multidraft.machine import commit, hardware, versions

PLANS = ("fresh", "kept")
Cell = tuple[float, str, int]  # temperature, plan, clients


def measure(options: argparse.Namespace, temperature: float, plan: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Both servers by turns at each number of clients, until all rounds are over or time is up."""
    words = ["--target", options.target, "--draft", options.draft, "--tree", "auto", "--threads", str(options.threads)]
    words += ["--engine", options.engine] if options.engine else []
    words += ["--temperature", str(temperature), "--max-new-tokens", str(options.new_tokens)]
    words += ["--requests", str(options.requests)]
    settings, end = server_arguments(words), time.monotonic() + seconds
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pairs = [
            (stack.enter_context(running(contestant, logs / f"{place}.log", options.threads)), contestant)
            for place, contestant in enumerate(contestants(settings))
        ]
        warm = argparse.Namespace(**vars(settings) | dict(requests=1))
        for server, contestant in pairs:
            asyncio.run(measured(server, contestant, ("closed", 1), warm))
        for turn in range(options.rounds):
            for clients in options.clients:
                for server, contestant in pairs if turn % 2 == 0 else pairs[::-1]:
                    yield asyncio.run(measured(server, contestant, ("closed", clients), settings))
                if turn and time.monotonic() > end:
                    return


def run(options: argparse.Namespace) -> dict[Cell, dict[str, list[float]]]:
    """Tokens and seconds by cell and server."""
    cells: dict[Cell, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
    seconds = 60 * options.minutes / (len(options.temperature) * len(PLANS))
    for temperature in options.temperature:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["XDG_CACHE_HOME"] = cache  # of the servers that begin from here on
            for plan in PLANS:
                for line in measure(options, temperature, plan, seconds):
                    total = cells[temperature, plan, int(line["size"])][line["server"].split(",")[0]]
                    total[0], total[1] = total[0] + line["tokens"], total[1] + line["seconds"]
                    where = f"T = {temperature:g}, {plan} plan, {line['size']:g} clients"
                    print(f"{where}: {line['server']} {line['tokens_per_second']:.0f} tokens/s", file=sys.stderr)
    return cells


def lines_of(cells: dict[Cell, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """One line a cell: both speeds, and their ratio."""
    lines = []
    for (temperature, plan, clients), totals in cells.items():
        speeds = {name: tokens / seconds for name, (tokens, seconds) in totals.items()}
        line = dict(temperature=temperature, plan=plan, clients=clients, **speeds)
        lines.append(line | dict(ratio=speeds["auto"] / speeds["plain"]))
    return lines


def main(words: list[str] | None = None) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default=str(ZOO / "target"), help="a folder or hub name; default: embedded")
    parser.add_argument("--engine", help="as for `multidraft serve`")
    parser.add_argument("--draft", default=str(ZOO / "draft"))
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16, 32])
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.7])
    parser.add_argument("--requests", type=int, default=2, help="of each client in a round")
    parser.add_argument("--max-new-tokens", dest="new_tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4, help="at most")
    parser.add_argument("--minutes", type=float, default=10.0, help="in all; first rounds are always finished")
    parser.add_argument("--threads", type=int, default=len(cores()))
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(words)
    try:
        lines = lines_of(run(options))
    except AdviceError as error:
        sys.exit(f"auto_over_plain.py: {error}")
    if options.json:
        machine = dict(hardware=hardware() | dict(threads=options.threads), versions=versions(), commit=commit())
        print(json.dumps(dict(settings=vars(options)) | machine | dict(lines=lines)))
        return
    shown = Table("T", "plan", "clients", "plain, tokens/s", "auto, tokens/s", "ratio")
    for line in lines:
        speeds = [f"{line[name]:.0f}" for name in ("plain", "auto")]
        shown.add_row(f"{line['temperature']:g}", line["plan"], str(line["clients"]), *speeds, f"{line['ratio']:.2f}")
    Console().print(shown)


if __name__ == "__main__":
    main()
