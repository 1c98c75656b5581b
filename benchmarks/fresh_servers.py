"""Fresh servers under bursts: as a user starts one, with an empty cache folder, on machines that do other things, too.

    python benchmarks/fresh_servers.py                # 20 servers, half an hour
    python benchmarks/fresh_servers.py --servers 4   # some minutes

Each server is `multidraft serve` as it comes (`--tree auto`) over the embedded pair, and gets bursts of clients with
all options mixed. By turns its machine is idle or has two busy processes beside, and its draft model is the pair's or
one of random weights, so that it rests. Every fourth is started once more with the plan that it has kept. It ends
with 1 where a server dies, answers 5xx but 503, leaves a traceback, or gives greedy texts that a plain one does not.
"""

import argparse
import asyncio
import itertools
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from abuse import Part, Serve, check_log, lay_out, mixed, send_many, table, watched
from rich.console import Console

CLIENTS, BURSTS, TOKENS = 64, 4, 24
RANDOM = "random_draft"
QUESTIONS = ("The old house", "It was", "In the year 1900 the sea")


def busy() -> None:
    """Compute for ever."""
    for number in itertools.count():
        number * number


@contextmanager
def busy_beside(count: int) -> Iterator[None]:
    """So many processes that compute beside a block."""
    processes = [multiprocessing.Process(target=busy, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def make_random_draft(folder: Path) -> None:
    """A draft model whose drafts are never right."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "draft")).float()
    model.save_pretrained(folder / RANDOM)
    AutoTokenizer.from_pretrained(folder / "draft").save_pretrained(folder / RANDOM)


def greedy_texts(server: Serve) -> list[str]:
    """Answers that no draft can change."""
    answers = [server.ask(prompt=prompt, max_tokens=32, temperature=0) for prompt in QUESTIONS]
    return [answer.json()["choices"][0]["text"] if answer.status_code == 200 else str(answer) for answer in answers]


def bursts(server: Serve, part: Part, seed: int) -> None:
    """All clients at once, several times."""
    for number in range(BURSTS):
        chance = random.Random(100 * seed + number)

        async def send(client: Any, index: int, chance: random.Random = chance) -> None:
            address, body = mixed(index, chance, TOKENS)
            response = await client.post(address, json=body)
            part.note(response.status_code, response.text)

        asyncio.run(send_many(server, CLIENTS, CLIENTS, send))
        time.sleep(0.5)


def tried(server: Serve, part: Part, seed: int, expected: list[str]) -> Part:
    """What becomes of one server."""
    try:
        with watched(server, part):
            bursts(server, part, seed)
        if (texts := greedy_texts(server)) != expected:
            part.broken.append(f"other greedy texts: {texts}")
        check_log(server, part)
        if server.process.poll() is not None:
            part.broken.append(f"the server has ended with {server.process.returncode}")
    finally:
        server.process.kill()
        server.process.wait()
    print(f"{part.name}: {dict(part.answers)}, broken: {part.broken or 'nothing'}", file=sys.stderr)
    return part


def run(count: int, folder: Path) -> list[Part]:
    """One server after another."""
    lay_out(folder)
    make_random_draft(folder)
    plain, parts = Serve(folder, None, "none"), list[Part]()
    expected = greedy_texts(plain)
    plain.process.kill()
    for number in range(count):
        draft, others = ("draft", RANDOM)[number % 2], 2 * (number // 2 % 2)
        cache = folder / f"cache{number}"
        name = f"{number}: {draft}, {others} busy beside"
        with busy_beside(others):
            parts.append(tried(Serve(folder, None, draft, cache), Part(name), number, expected))
            if number % 4 == 3:
                parts.append(tried(Serve(folder, None, draft, cache), Part(f"{name}, kept plan"), number, expected))
    return parts


def main(words: list[str] | None = None) -> int:
    """Try, print, and say how many promises were broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=int, default=20)
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        parts = run(options.servers, Path(folder))
    Console(width=max(140, Console().width)).print(table(parts))
    return sum(len(part.broken) for part in parts)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(min(main(), 1))
