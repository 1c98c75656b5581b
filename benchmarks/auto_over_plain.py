"""Whether `auto` is ever slower than no drafts: the ratio of a server's tokens a second with it and without.

    python benchmarks/auto_over_plain.py                                   # the embedded pair, some ten minutes
    python benchmarks/auto_over_plain.py --target smollm2 --engine transformers --draft copy+eagle3:smollm2
    python benchmarks/auto_over_plain.py --minutes 4 --clients 16 --temperature 0

Both engines of `multidraft serve` run in this process, a turn of one and a turn of the other, without HTTP, and **on
the same weights**: of two servers, even of two models in one process, one has the faster memory, by up to a twentieth,
and a machine's speed changes as much within seconds. For each temperature they begin twice: with an empty cache folder
("fresh", so that the steps that are timed count), and with the plan that the first time has left ("kept"). So
many clients each ask again as soon as they are answered, for 32 to 96 tokens, without a break between rounds. The
ratio is that of tokens a second, with the standard error of the rounds' own. Requests have no seed: a row with one
drafts a fixed shape, whatever pays. Answers go on behind an end of text, so that both engines have as much to do.
"""

import argparse
import gc
import itertools
import json
import math
import os
import random
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
from multidraft.models.gguf.memory import Memory
from multidraft.models.gguf.model import GGUF
from multidraft.models.reader import Reader
from multidraft.sampling.settings import Sampling
from multidraft.server.engine import Engine
from multidraft.server.request_bodies import ChatBody
from multidraft.server.service import Service

PROMPTS = Path(__file__).with_name("prompts.jsonl")
PLANS = ("fresh", "kept")


class Cell(NamedTuple):
    """What is compared, by rounds."""

    temperature: float
    plan: str
    clients: int


class Round(NamedTuple):
    """What both engines did: tokens, and seconds of their own turns."""

    plain_tokens: int
    plain_seconds: float
    auto_tokens: int
    auto_seconds: float

    @property
    def ratio(self) -> float:
        """How many times as fast as plain decoding."""
        return (self.auto_tokens / self.auto_seconds) / (self.plain_tokens / self.plain_seconds)


class Clients:
    """So many clients of an engine, who each ask again as soon as they are answered, without end."""

    def __init__(self, engine: Engine, questions: "Questions", first: int, count: int):
        self.engine, self.questions, self.seconds = engine, questions, 0.0
        self.numbers, self.tokens_before = itertools.count(first), engine.info.tokens
        self.count, self.ready = count, list[Request]()
        self.prepare()
        self.ask(count)

    def prepare(self) -> None:
        """Make the next requests, which takes no time of a turn."""
        while len(self.ready) < self.count:
            self.ready.append(self.questions.request(next(self.numbers)))

    def ask(self, count: int) -> None:
        """Send the next requests."""
        self.engine.batch.add(self.ready[:count])
        self.ready = self.ready[count:]

    def receive(self, updates: Updates) -> None:
        """What a turn has brought; who is answered asks again."""
        for _, update in updates:
            if update.error is not None:
                raise update.error
        self.ask(sum(update.end is not None for _, update in updates))

    @property
    def tokens(self) -> int:
        """What the engine has answered them."""
        return self.engine.info.tokens - self.tokens_before

    def turn(self) -> None:
        """A turn of the engine, whose time counts."""
        self.prepare()
        self.engine.deliver = self.receive
        start = time.perf_counter()
        self.engine.turn()
        self.seconds += time.perf_counter() - start

    def leave(self) -> None:
        """Ask no more, and let go of what has been asked."""
        for request in self.engine.batch.requests:
            request.cancelled = True
        self.engine.batch.drop_cancelled()


class Questions:
    """Chats by number, the same for all engines: only the template's beginning is the same in all; of any length."""

    def __init__(self, service: Service, new_tokens: int, temperature: float):
        self.service, self.new_tokens, self.sampling = service, new_tokens, Sampling(temperature=temperature)
        self.texts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()]

    def request(self, number: int) -> Request:
        """A new request with this number: for half to one and a half times the number of tokens."""
        message = {"role": "user", "content": f"[{number}] {self.texts[number % len(self.texts)]}"}
        prompt = self.service.encode_conversation(ChatBody(model=self.service.names[0], messages=[message]))
        length = random.Random(number).randint(self.new_tokens // 2, 3 * self.new_tokens // 2)
        generator = torch.Generator().manual_seed(number)
        return Request(prompt, length, sampling=self.sampling, generator=generator)


def engines(options: argparse.Namespace, temperature: float) -> tuple[Engine, Engine, Questions]:
    """An engine without drafts, and one with `auto`, on one target; and what they are asked."""
    settings = Serving(
        target=options.target, draft=options.draft, engine=options.engine, tree="auto", threads=options.threads
    )
    service = settings.service()
    config, policy, *_ = replace(settings, draft="none").configure()
    plain = Engine(with_own_memory(service.engine.target), None, config, policy, settings.limits)
    return plain, service.engine, Questions(service, options.new_tokens, temperature)


def with_own_memory(target: Reader) -> Reader:
    """The same weights; of a GGUF file with other cells, as in a server of its own: passes compute with all cells."""
    if isinstance(target, GGUF):
        target = target.new(target.capacity)
        target.memory = target.source = Memory(target.weights, target.memory.kind)
    return target


def rounds_of(both: list[Clients], tokens: int) -> Iterator[Round]:
    """Let the clients of both engines go on for so many tokens at a time, a turn of one and a turn of the other."""
    order = [*both]
    for goal in itertools.count(tokens, tokens):
        before = [(clients.tokens, clients.seconds) for clients in both]
        while going := [clients for clients in order if clients.tokens < goal]:
            for clients in going:
                clients.turn()
            order.reverse()
        plain, auto = (
            (clients.tokens - so_far[0], clients.seconds - so_far[1])
            for clients, so_far in zip(both, before, strict=True)
        )
        yield Round(*plain, *auto)


def measure(options: argparse.Namespace, temperature: float, plan: str) -> Iterator[tuple[Cell, Round]]:
    """The rounds of all numbers of clients, one number after another, until all are over or time is up."""
    plain, auto, questions = engines(options, temperature)
    seconds = 60 * options.minutes / (len(options.temperature) * len(PLANS) * len(options.clients))
    gc.collect()
    gc.freeze()  # as in the server
    with torch.inference_mode():
        for place, count in enumerate([1, *options.clients]):  # the first of them is not counted
            both = [Clients(engine, questions, 10_000 * place, count) for engine in (plain, auto)]
            end, tokens = time.monotonic() + seconds, count * options.requests * options.new_tokens
            for number, one in enumerate(rounds_of(both, tokens if place else options.new_tokens), 1):
                if place:
                    yield Cell(temperature, plan, count), one
                if not place or number == options.rounds or time.monotonic() > end:
                    break
            for clients in both:
                clients.leave()
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
                    where = f"T = {temperature:g}, {plan} plan, {cell.clients} clients"
                    print(f"{where}: {one.ratio:.3f}", file=sys.stderr)
    return cells


def line_of(cell: Cell, rounds: list[Round]) -> dict[str, Any]:
    """One line of the result: both speeds, their ratio, and its standard error."""
    total, ratios = Round(*map(sum, zip(*rounds, strict=True))), [one.ratio for one in rounds]
    error = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else None
    speeds = dict(plain=total.plain_tokens / total.plain_seconds, auto=total.auto_tokens / total.auto_seconds)
    return cell._asdict() | speeds | dict(ratio=total.ratio, error=error)


def main(words: list[str] | None = None) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default=str(ZOO / "target"), help="a folder or hub name; default: embedded")
    parser.add_argument("--engine", help="as for `multidraft serve`")
    parser.add_argument("--draft", default=str(ZOO / "draft"))
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16, 32])
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.7])
    parser.add_argument("--requests", type=int, default=2, help="of each client in a round")
    parser.add_argument("--max-new-tokens", dest="new_tokens", type=int, default=64, help="on the average")
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
