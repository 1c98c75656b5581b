"""Servers under load: tokens a second, time to the first token, and time between tokens, of several servers in one run.

    python benchmarks/serve.py                                            # our server: plain, the default tree, auto
    python benchmarks/serve.py --transformers transformers --vllm ENVIRONMENT/bin/vllm --json > serve.json
    python benchmarks/serve.py --target FILE.gguf --draft lookup --tree auto --llama-server PYTHON
    python benchmarks/serve.py --quick                                    # a minute or two, to see that it runs

In the closed loop so many clients each ask again as soon as they are answered; in the open one requests come as a
Poisson process, whether or not others have been answered. All servers are begun first and take their turns at each
load, so that a noisy machine hits all alike; those whose turn it is not are stopped, as waiting may cost. Each computes
with --threads threads; `auto` may take fewer. How many processors a server really kept busy is in the column "cores". A
step of ours brings several tokens at once: each counts as having taken its share of the time since the step before.
Requests have no seed: with one, a row drafts a fixed shape, and `auto` would choose nothing.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from rich.console import Console
from rich.table import Table
from servers import ZOO, Contestant, Server, contestants, cores, running
from tqdm import tqdm

from multidraft.errors import AdviceError
from multidraft.generation import DEFAULT_TREE, FIXED_TREE
from multidraft.machine import commit, hardware, versions

PROMPTS = Path(__file__).with_name("prompts.jsonl")
QUICK = dict(requests=4, new_tokens=12, clients=[2], rate=[2.0], tree=[FIXED_TREE])
Load = tuple[str, float]  # closed with so many clients, or open at so many requests a second
UNIT = 1000  # times are shown in milliseconds


@dataclass
class Answer:
    """When a request was sent, and when how many tokens came."""

    sent: float = field(default_factory=time.perf_counter)
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    fault: str | None = None

    @property
    def tokens(self) -> int:
        """All of them."""
        return sum(count for _, count in self.arrivals)

    @property
    def gaps(self) -> list[float]:
        """The time that each token took after the first ones."""
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return [(now - before) / count for (before, _), (now, count) in pairs for _ in range(count)]


class Client:
    """Asks one server, with prompts in turn."""

    def __init__(self, http: httpx2.AsyncClient, model: str, fields: dict[str, Any], options: argparse.Namespace):
        self.http, self.model, self.fields, self.options = http, model, fields, options
        self.answers: list[Answer] = []

    async def ask(self, number: int) -> None:
        """One request, whose answer is noted as it comes."""
        answer = Answer()
        self.answers.append(answer)
        prompt = self.options.texts[number % len(self.options.texts)]
        body = dict(model=self.model, prompt=prompt, max_tokens=self.options.new_tokens, stream=True)
        body |= {"temperature": self.options.temperature} | self.fields
        try:
            async with self.http.stream("POST", "/v1/completions", json=body) as response:
                if response.status_code != 200:
                    answer.fault = f"{response.status_code} {(await response.aread()).decode()[:200]}"
                async for line in response.aiter_lines():
                    note(answer, line)
        except httpx2.HTTPError as error:
            answer.fault = repr(error)

    async def closed(self, clients: int) -> None:
        """So many at a time."""
        numbers = iter(range(self.options.requests * clients))

        async def ask_in_turn() -> None:
            for number in numbers:
                await self.ask(number)

        await asyncio.gather(*(ask_in_turn() for _ in range(clients)))

    async def open(self, rate: float) -> None:
        """So many a second on the average, at random times that are the same for every server."""
        chance, tasks = random.Random(self.options.seed), []
        for number in range(self.options.requests * max(round(rate), 1)):
            await asyncio.sleep(chance.expovariate(rate))
            tasks.append(asyncio.create_task(self.ask(number)))
        await asyncio.gather(*tasks)


def note(answer: Answer, line: str) -> None:
    """One line of a stream: how many tokens it brings; without a number, an event is a token."""
    if not line.startswith("data: {"):
        return
    event = json.loads(line.removeprefix("data: "))
    if "error" in event:
        answer.fault = str(event["error"])
    elif event["choices"]:
        usage = event.get("usage")
        num_new = usage["completion_tokens"] - answer.tokens if usage else int(bool(event["choices"][0]["text"]))
        if num_new:
            answer.arrivals.append((time.perf_counter(), num_new))


async def measured(server: Server, contestant: Contestant, load: Load, options: argparse.Namespace) -> dict[str, Any]:
    """What one server does under a load."""
    kind, size = load
    # A connection each, for llama.cpp's server may close one on which a request is on its way.
    unlimited = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx2.AsyncClient(base_url=server.url, timeout=600, limits=unlimited) as http:
        client = Client(http, options.target, contestant.fields, options)
        with server.turn():
            start, before = time.perf_counter(), server.seconds
            await (client.closed(int(size)) if kind == "closed" else client.open(size))
            seconds, busy = time.perf_counter() - start, server.seconds - before
    line = dict(server=contestant.name, load=kind, size=size, cores=busy / seconds)
    return line | summary(client.answers, seconds)


def summary(answers: list[Answer], seconds: float) -> dict[str, Any]:
    """The numbers of one server under one load."""
    whole = [answer for answer in answers if answer.fault is None and answer.arrivals]
    first = [answer.arrivals[0][0] - answer.sent for answer in whole]
    tokens = sum(answer.tokens for answer in whole)
    numbers: dict[str, Any] = dict(requests=len(answers), failed=len(answers) - len(whole), tokens=tokens)
    faults = [answer.fault or "an answer without tokens" for answer in answers if answer not in whole]
    numbers |= dict(seconds=seconds, tokens_per_second=tokens / seconds, fault=next(iter(faults), None))
    numbers |= {f"first_token_{name}": value for name, value in quantiles(first).items()}
    return numbers | {
        f"between_tokens_{name}": value for name, value in quantiles([g for a in whole for g in a.gaps]).items()
    }


def quantiles(values: list[float]) -> dict[str, float | None]:
    """The median, and what one in a hundred exceeds; None of nothing."""
    return {f"p{part}": float(np.percentile(values, part)) if values else None for part in (50, 99)}


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All loads, for each of which the servers take turns."""
    loads: list[Load] = [("closed", clients) for clients in options.clients] + [("open", rate) for rate in options.rate]
    who, results = contestants(options), []
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if options.fresh_cache:
            os.environ["XDG_CACHE_HOME"] = str(logs)  # of the processes that begin from here on
        begun = [
            stack.enter_context(running(contestant, logs / f"{place}.log", options.threads))
            for place, contestant in enumerate(who)
        ]
        warm = argparse.Namespace(**vars(options) | dict(requests=2))
        for server, contestant in zip(begun, who, strict=True):
            asyncio.run(measured(server, contestant, ("closed", 2), warm))
        turns = [(load, *pair) for load in loads for pair in zip(begun, who, strict=True)]
        for load, server, contestant in tqdm(turns, desc="measuring", unit="load"):
            results.append(asyncio.run(measured(server, contestant, load, options)))
            if fault := results[-1]["fault"]:
                tqdm.write(f"{contestant.name}, {load}: {results[-1]['failed']} failed, as with: {fault}", sys.stderr)
    return results


def table(results: list[dict[str, Any]], threads: int) -> Table:
    """For people; times in milliseconds."""
    times = [f"{what}_{part}" for what in ("first_token", "between_tokens") for part in ("p50", "p99")]
    heads = ["load", "server", "failed", "tokens/s", *(name.replace("_", " ") + ", ms" for name in times), "cores"]
    shown = Table(*heads, title=f"Servers with {threads} thread{'s' * (threads > 1)} each")
    for row in results:
        cells = ["" if row[name] is None else f"{UNIT * row[name]:.1f}" for name in times]
        where, speed = f"{row['load']} {row['size']:g}", f"{row['tokens_per_second']:.0f}"
        shown.add_row(where, row["server"], str(row["failed"]), speed, *cells, f"{row['cores']:.1f}")
    return shown


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default=str(ZOO / "target"), help="a folder or hub name; default: embedded")
    parser.add_argument("--engine", help="of our server, as for `multidraft serve`")
    parser.add_argument("--their-target", help="for the other servers: a folder, where ours is named smollm2")
    parser.add_argument("--draft", default=str(ZOO / "draft"), help="not a folder: ours alone, vLLM then takes n-grams")
    parser.add_argument("--tree", nargs="+", default=[FIXED_TREE, DEFAULT_TREE], help="our server with each of these")
    parser.add_argument("--transformers", metavar="PROGRAM", help="of an environment with transformers[serving]")
    parser.add_argument("--vllm", metavar="PROGRAM", help="of an environment with vllm")
    parser.add_argument("--llama-server", metavar="PYTHON", help="that has xllamacpp, which reads the target")
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 4, 16], help="of the closed loop")
    parser.add_argument("--rate", type=float, nargs="*", default=[1.0, 2.0, 4.0, 8.0], help="requests a second")
    parser.add_argument("--requests", type=int, default=12, help="of each client, and times the rate")
    parser.add_argument("--max-new-tokens", dest="new_tokens", type=int, default=64)
    parser.add_argument("--context", type=int, default=512, help="tokens of a request, for vLLM and llama.cpp")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--threads", type=int, default=len(cores()), help="of each server; default: all processors")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh-cache", action="store_true", help="ours begin without plans, as on a new machine")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quick", action="store_true", help=f"to see that it runs: {QUICK}")
    options = parser.parse_args(words)
    if not 1 <= options.threads <= len(cores()):
        parser.error(f"--threads {options.threads}: there are 1 to {len(cores())} here")
    vars(options).update(QUICK if options.quick else {})
    options.texts = [json.loads(line)["prompt"] for line in options.prompts.read_text().splitlines()]
    return options


def main(words: list[str] | None = None) -> None:
    """Measure, and print."""
    options = arguments(words)
    try:
        results = run(options)
    except AdviceError as error:
        sys.exit(f"serve.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    if options.json:
        settings = {name: str(value) for name, value in vars(options).items() if name != "texts"}
        machine = dict(hardware=hardware() | dict(threads=options.threads), versions=versions(), commit=commit())
        print(
            json.dumps(dict(settings=settings, day=datetime.now(UTC).date().isoformat()) | machine | dict(runs=results))
        )
    else:
        Console(width=max(140, Console().width)).print(table(results, options.threads))


if __name__ == "__main__":
    main()
