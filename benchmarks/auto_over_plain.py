"""Whether `auto` is ever slower than no drafts: the ratio of a server's tokens a second with it and without.

    python benchmarks/auto_over_plain.py                                   # the embedded pair, some ten minutes
    python benchmarks/auto_over_plain.py --target smollm2 --engine transformers --draft copy+eagle3:smollm2
    python benchmarks/auto_over_plain.py --minutes 4 --clients 16 --temperature 0

Both engines of `multidraft serve` run in this process, a turn of one and a turn of the other, without HTTP, and **on
the same weights**: of two servers, even of two models in one process, one has the faster memory, by up to a twentieth,
and a machine's speed changes as much within seconds. For each temperature they begin twice: with an empty cache folder
("fresh", so that the steps that are timed count), and with the plan that the first time has left ("kept"). A round is
so many clients, who each ask again as soon as they are answered. The ratio is that of all tokens to all seconds, with
the standard error of the rounds' own ratios. Requests have no seed: a row with one drafts a fixed shape, whatever pays.
"""

import argparse
import gc
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from servers import ZOO, cores

from multidraft.cli.serving import Serving
from multidraft.decoding.batch import Updates
from multidraft.decoding.request import Request
from multidraft.errors import AdviceError
from multidraft.machine import commit, hardware, versions
from multidraft.sampling.settings import Sampling
from multidraft.server.bodies import ChatBody
from multidraft.server.engine import Engine
from multidraft.server.service import Service

PROMPTS = Path(__file__).with_name("prompts.jsonl")
PLANS = ("fresh", "kept")


class Cell(NamedTuple):
    """What is compared, by rounds."""

    temperature: float
    plan: str
    clients: int


class Round(NamedTuple):
    """What both engines made of the same requests: tokens a second."""

    tokens: int
    plain_seconds: float
    auto_seconds: float


class Clients:
    """So many clients of an engine, who ask again as soon as they are answered."""

    def __init__(self, engine: Engine, requests: list[Request], count: int):
        self.engine, self.waiting, self.seconds = engine, requests[::-1], 0.0
        self.send(count)

    def send(self, count: int) -> None:
        """Send the next requests, if so many are left."""
        self.engine.batch.add([self.waiting.pop() for _ in range(min(count, len(self.waiting)))])

    def receive(self, updates: Updates) -> None:
        """What a turn has brought; who is answered asks again."""
        for _, update in updates:
            if update.error is not None:
                raise update.error
        self.send(sum(update.end is not None for _, update in updates))

    def turn(self) -> bool:
        """A turn of the engine, whose time counts; whether there was anything to do."""
        is_going = bool(self.engine.batch.requests)
        start = time.perf_counter()
        if is_going:
            self.engine.deliver = self.receive
            self.engine.turn()
        self.seconds += time.perf_counter() - start
        return is_going


class Questions:
    """Chats by number, the same for all engines; only the template's beginning is the same in all."""

    def __init__(self, service: Service, new_tokens: int, temperature: float):
        self.service, self.new_tokens, self.sampling = service, new_tokens, Sampling(temperature=temperature)
        self.texts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()]

    def request(self, number: int) -> Request:
        """A new request with this number."""
        message = {"role": "user", "content": f"[{number}] {self.texts[number % len(self.texts)]}"}
        prompt = self.service.encode_conversation(ChatBody(model=self.service.names[0], messages=[message]))
        generator = torch.Generator().manual_seed(number)
        return Request(prompt, self.new_tokens, sampling=self.sampling, generator=generator)

    def seconds(self, engines: tuple[Engine, ...], numbers: range, clients: int) -> list[float]:
        """How long each engine takes for these, by turns; who is first changes with every turn."""
        loads = [Clients(engine, [self.request(number) for number in numbers], clients) for engine in engines]
        order = [*loads]
        while any([load.turn() for load in order]):
            order.reverse()
        return [load.seconds for load in loads]


def engines(options: argparse.Namespace, temperature: float) -> tuple[Engine, Engine, Questions]:
    """An engine without drafts, and one with `auto`, on one target; and what they are asked."""
    settings = Serving(
        target=options.target, draft=options.draft, engine=options.engine, tree="auto", threads=options.threads
    )
    service = settings.service()
    config, policy, *_ = replace(settings, draft="none").configure()
    plain = Engine(service.engine.target, None, config, policy, settings.limits)
    return plain, service.engine, Questions(service, options.new_tokens, temperature)


def measure(options: argparse.Namespace, temperature: float, plan: str) -> Iterator[tuple[Cell, Round]]:
    """Rounds of all numbers of clients, until all are over or time is up."""
    plain, auto, questions = engines(options, temperature)
    end = time.monotonic() + 60 * options.minutes / (len(options.temperature) * len(PLANS))
    gc.collect()
    gc.freeze()  # as in the server
    with torch.inference_mode():
        questions.seconds((plain, auto), range(1), 1)
        first = 1
        for turn in range(options.rounds):
            for count in options.clients:
                numbers = range(first, first + options.requests * count)
                first = numbers.stop
                seconds = questions.seconds((plain, auto), numbers, count)
                yield Cell(temperature, plan, count), Round(len(numbers) * options.new_tokens, *seconds)
            if turn and time.monotonic() > end:
                break
    auto.policy.finish(advise=False)
    gc.unfreeze()


def run(options: argparse.Namespace) -> dict[Cell, list[Round]]:
    """The rounds of each cell."""
    cells = defaultdict[Cell, list[Round]](list)
    for temperature in options.temperature:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["XDG_CACHE_HOME"] = cache
            for plan in PLANS:
                for cell, one in measure(options, temperature, plan):
                    cells[cell].append(one)
                    plain, auto = one.tokens / one.plain_seconds, one.tokens / one.auto_seconds
                    where = f"T = {temperature:g}, {plan} plan, {cell.clients} clients"
                    print(f"{where}: {plain:.0f} and {auto:.0f} tokens/s, {auto / plain:.3f}", file=sys.stderr)
    return cells


def line_of(cell: Cell, rounds: list[Round]) -> dict[str, Any]:
    """One line of the result: both speeds, their ratio, and its standard error."""
    tokens, plain, auto = (sum(numbers) for numbers in zip(*rounds, strict=True))
    ratios = [one.plain_seconds / one.auto_seconds for one in rounds]
    error = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else None
    return cell._asdict() | dict(plain=tokens / plain, auto=tokens / auto, ratio=plain / auto, error=error)


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
        lines = [line_of(cell, rounds) for cell, rounds in run(options).items()]
    except AdviceError as error:
        sys.exit(f"auto_over_plain.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    if options.json:
        machine = dict(hardware=hardware() | dict(threads=options.threads), versions=versions(), commit=commit())
        print(json.dumps(dict(settings=vars(options)) | machine | dict(lines=lines)))
        return
    shown = Table("T", "plan", "clients", "plain, tokens/s", "auto, tokens/s", "ratio")
    for line in lines:
        speeds = [f"{line[name]:.0f}" for name in ("plain", "auto")]
        ratio = f"{line['ratio']:.3f}" + (f" ± {line['error']:.3f}" if line["error"] is not None else "")
        shown.add_row(f"{line['temperature']:g}", line["plan"], str(line["clients"]), *speeds, ratio)
    Console().print(shown)


if __name__ == "__main__":
    main()
