"""A server under abuse: a real `multidraft serve` over the embedded pair, in float32, beside all that may do it harm.

    python benchmarks/abuse.py                       # some minutes
    python benchmarks/abuse.py --quick               # a minute, a little of everything
    python benchmarks/abuse.py --only clients slow   # some parts

After each part the same questions get the same texts. Meanwhile `/health` is asked all the time. It ends with 1 where
a promise is broken: an answer of 5xx but 503, a text that is another for the same seed, `/health` later than 0.3 s,
memory that grows, a traceback in the log.
"""

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil
from rich.console import Console
from rich.table import Table
from servers import ZOO

PATIENCE, HEALTH = 600, 0.3  # seconds: of a client, and until /health is answered at the latest
GROWTH = 1.0  # MB by which a server may grow for 1,000 requests, over the second half of many
MANY = 1_000  # of them: the first few hundred fill its caches
DRAIN = 2  # seconds
TREE = "2x1x1x1"  # fixed, so that a seed gives the same text whoever decodes beside it
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
JSON = {"content-type": "application/json"}
FULL = dict(clients=64, slow=60, huge=8, bodies=3000, disconnects=200, requests=10_000)
QUICK = dict(clients=16, slow=8, huge=2, bodies=150, disconnects=20, requests=300)
ADDRESSES = ("/v1/completions", "/v1/chat/completions")
FIELDS = (
    "prompt messages max_tokens min_tokens temperature top_p top_k min_p top_n_sigma presence_penalty "
    "frequency_penalty repetition_penalty logit_bias seed n logprobs top_logprobs echo stop stop_token_ids stream "
    "stream_options ignore_eos best_of tools tool_choice response_format max_completion_tokens chat_template_kwargs "
    "multidraft suffix model user"
).split()
PLAIN = (None, True, False, 0, 1, 2, 3, -1, 0.5, 1.5, 1e-300, 1e300, 2**31, 2**63, 10**30, float("nan"), float("inf"))
TEXTS = ("", "a", "é", "\ud800", "\x00", "no", "auto", "a" * 5000, "{{ x }}", "1")


@dataclass
class Part:
    """What became of the requests of one kind of abuse."""

    name: str
    answers: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    health: list[float] = field(default_factory=list)
    memory: float = 0.0  # MB at the end
    growth: float | None = None  # MB, over the second half of many requests
    broken: list[str] = field(default_factory=list)

    def note(self, status: int | str, text: str = "") -> None:
        """One more answer; an error within a stream has its own status."""
        inner = re.search(r'"error": ?\{.*"code": ?(\d+)', text[-2000:])
        outcome = f"{status} {inner[1]}" if inner and status == 200 else str(status)
        self.answers[outcome] += 1
        if outcome.split()[-1].startswith("5") and outcome.split()[-1] != "503":
            self.broken.append(f"{outcome}: {text[-200:]}")


class Serve:
    """A server's process, its address and its log; with a folder for the user's cache of its own if one is given."""

    def __init__(self, folder: Path, tree: str | None = TREE, draft: str = "draft", cache: Path | None = None):
        self.folder, self.log, self.tree, self.draft, self.cache = folder, folder / "log", tree, draft, cache
        self.start()

    def start(self) -> None:
        """Begin, and wait until it answers."""
        command = [sys.executable, "-c", "from multidraft.cli.main import main; main()", "serve", "--port", "0"]
        draft = self.draft if self.draft == "none" else str(self.folder / self.draft)
        command += ["--target", str(self.folder / "target"), "--draft", draft, "--name", "toy"]
        if self.tree is not None:
            command += ["--tree", self.tree, "--drain", str(DRAIN), "--max-tokens-in-cache", "4096"]
        self.log.write_text("")
        environment = os.environ | ({"XDG_CACHE_HOME": str(self.cache)} if self.cache else {})
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, env=environment)
        while not (address_match := re.search(r"serving toy at (http://[\d.:]+)/v1", self.log.read_text())):
            if self.process.poll() is not None:
                raise SystemExit(f"the server did not begin: {self.log.read_text()[-500:]}")
            time.sleep(0.1)
        self.url = address_match[1]

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    @property
    def memory(self) -> float:
        """MB that the process has written to; pages of libraries become its own whenever another process ends."""
        info = psutil.Process(self.process.pid).memory_info()
        return (info.rss - getattr(info, "shared", 0)) / 1e6

    def ask(self, **body: Any) -> httpx2.Response:
        """One completion."""
        return httpx2.post(f"{self.url}/v1/completions", json=body_of(**body), timeout=PATIENCE)


def body_of(**body: Any) -> dict[str, Any]:
    """A request that is right but for what is given."""
    return {"model": "toy", "prompt": "The old house", "max_tokens": 8} | body


def texts(server: Serve) -> list[str]:
    """Answers to the same questions, alone: of several temperatures, and of several seeds."""
    settings = [dict(temperature=0), *(dict(temperature=0.8, seed=seed, top_p=0.95) for seed in range(4))]
    bodies = [dict(prompt=prompt, max_tokens=24, **body) for prompt in ("The old house", "It was") for body in settings]
    return [server.ask(**body).json()["choices"][0]["text"] for body in bodies]


@contextmanager
def watched(server: Serve, part: Part) -> Iterator[None]:
    """Ask for /health all the time, from a thread, until the block ends; note seconds and memory."""
    over = threading.Event()

    def ask() -> None:
        with httpx2.Client(base_url=server.url, timeout=PATIENCE) as client:
            while not over.wait(0.02):
                began = time.perf_counter()
                status = client.get("/health").status_code
                part.health.append(time.perf_counter() - began)
                if status != 200:
                    part.broken.append(f"/health said {status}")

    thread = threading.Thread(target=ask)
    began = time.perf_counter()
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        part.seconds, part.memory = time.perf_counter() - began, server.memory


async def send_many(server: Serve, count: int, workers: int, send: Callable[[Any, int], Awaitable[None]]) -> None:
    """So many calls by so many clients, each of which has a connection of its own."""
    numbers = iter(range(count))

    async def work() -> None:
        async with httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
            for number in numbers:
                await send(client, number)

    await asyncio.gather(*(work() for _ in range(workers)))


def clients(server: Serve, part: Part, count: int) -> None:
    """All at once, by turns whole and streamed, short and long, one answer and two."""

    async def send(client: Any, number: int) -> None:
        body = body_of(max_tokens=16 + 8 * (number % 5), seed=number, stream=number % 2 == 0, n=1 + (number % 7 == 0))
        response = await client.post("/v1/completions", json=body)
        part.note(response.status_code, response.text)

    asyncio.run(send_many(server, 2 * count, count, send))


def slow(server: Serve, part: Part, count: int) -> None:
    """Sockets that say nothing, or headers and bodies byte by byte; others are answered as before."""
    body = json.dumps(body_of()).encode()
    sent = [b"", HEAD * 2, HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body]

    async def socket(number: int) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        with suppress(ConnectionError):
            for place in range(len(sent[number % 3])):
                writer.write(sent[number % 3][place : place + 1])
                await writer.drain()
                await asyncio.sleep(0.02 if place % 200 < 199 else 60)
        answer = b""
        with suppress(ConnectionError, TimeoutError):
            answer = await asyncio.wait_for(reader.read(1 << 16), PATIENCE)
        part.note(answer.split(b" ")[1].decode() if answer else "closed", answer.decode("latin-1"))
        writer.close()

    async def all_of_them() -> None:
        sockets = asyncio.gather(*(socket(number) for number in range(count)))
        while not sockets.done():
            async with httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
                part.note((await client.post("/v1/completions", json=body_of(seed=1))).status_code)
                await asyncio.sleep(1)
        await sockets

    asyncio.run(all_of_them())


def huge(server: Serve, part: Part, count: int) -> None:
    """Bodies at and beyond the limit: long texts, lists of wrong things, nesting, and what never ends."""
    limit = (1 << 20) - 1000
    words = "The old house stood at the end. " * (limit // 32)
    bodies: list[tuple[str, Any]] = [
        ("/v1/completions", body_of(prompt=words)),
        ("/v1/completions", body_of(prompt="\x00" * (limit // 6))),
        ("/v1/completions", body_of(prompt=["x", *[1.5] * (limit // 5)])),
        ("/v1/completions", body_of(prompt=[[1]] * (limit // 5))),
        ("/v1/completions", body_of(prompt=["a"] * (limit // 5))),
        ("/v1/completions", body_of(stop=["a"] * (limit // 5))),
        ("/v1/completions", body_of(logit_bias={str(token): 0 for token in range(limit // 16)})),
        ("/v1/chat/completions", dict(model="toy", messages=[{"role": "user", "content": words}])),
        ("/v1/chat/completions", dict(model="toy", messages=[{"role": "user", "content": "a"}] * (limit // 36))),
        ("/v1/chat/completions", dict(model="toy", messages=[1] * (limit // 3))),
        ("/tokenize", dict(prompt=words)),
        ("/tokenize", dict(prompt="a" * limit, return_token_strs=True)),
        ("/detokenize", dict(tokens=[7] * (limit // 3))),
        ("/v1/completions", b'{"a":' * (limit // 5)),
        ("/v1/completions", b"[" * limit),
        ("/v1/completions", b" " * 50_000_000),
        ("/v1/completions", iter([b" " * 1_000_000] * 50)),
    ]

    async def send(client: Any, number: int) -> None:
        address, body = bodies[number % len(bodies)]
        content = json.dumps(body, separators=(",", ":")).encode() if isinstance(body, dict) else body
        if not isinstance(content, bytes):
            content = streamed(content)
        try:
            response = await client.post(address, content=content, headers=JSON)
            part.note(response.status_code, response.text)
        except httpx2.TransportError:  # the answer came while the body was on its way
            part.note("closed")

    async def streamed(pieces: Iterator[bytes]) -> Any:
        for piece in pieces:
            yield piece

    asyncio.run(send_many(server, count * len(bodies) // 2, count, send))


def value(chance: random.Random, depth: int = 0) -> Any:
    """Anything that JSON can say, and Python's JSON a little more."""
    kind = chance.randrange(6 if depth < 2 else 4)
    if kind == 4:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 5:
        names = [*TEXTS[:5], "role", "content", "type", "0", "1", "include_usage"]
        return {chance.choice(names): value(chance, depth + 1) for _ in range(chance.randrange(3))}
    return chance.choice([*PLAIN, *TEXTS, chance.randrange(2048), chance.random()])


def bodies(server: Serve, part: Part, count: int) -> None:
    """Requests with up to four fields of random values, and some bytes that are no JSON."""
    chance = random.Random(0)
    chat = dict(model="toy", messages=[{"role": "user", "content": "Hello"}], max_tokens=4)

    async def send(client: Any, number: int) -> None:
        change = {chance.choice(FIELDS): value(chance) for _ in range(chance.randrange(1, 5))}
        content = json.dumps((body_of(max_tokens=4), chat)[number % 2] | change).encode()
        if number % 10 == 0:
            content = content[: chance.randrange(len(content))] + chance.randbytes(chance.randrange(8))
        response = await client.post(ADDRESSES[number % 2], content=content, headers=JSON)
        part.note(response.status_code, response.text)

    asyncio.run(send_many(server, count, 16, send))


def disconnects(server: Serve, part: Part, count: int) -> None:
    """Clients that go while they send, wait, or read."""
    chance = random.Random(1)

    async def send(_: Any, number: int) -> None:
        body = body_of(max_tokens=400, ignore_eos=True, stream=number % 2 == 0, n=1 + number % 3)
        content = json.dumps(body).encode()
        whole = HEAD + f"Content-Length: {len(content)}\r\n\r\n".encode() + content
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(whole[: chance.randrange(len(whole)) if number % 4 == 3 else len(whole)])
        await writer.drain()
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.read(1 << 16), chance.random())
        part.note("gone")
        writer.transport.abort()

    asyncio.run(send_many(server, count, 16, send))


def mixed(number: int, chance: random.Random, tokens: int = 3) -> tuple[str, dict[str, Any]]:
    """A request with any of the options that a server knows."""
    options = dict(
        temperature=chance.choice([0, 0.7, 1.0, 1.3]),
        top_p=chance.choice([1.0, 0.9]),
        top_k=chance.choice([-1, 5]),
        min_p=chance.choice([0, 0.05]),
        presence_penalty=chance.choice([0, 0.5]),
        repetition_penalty=chance.choice([1.0, 1.1]),
        logit_bias=chance.choice([{}, {"5": -3, "7": 2}]),
        seed=chance.choice([None, number]),
        n=1 + (chance.random() < 0.2),
        stop=chance.choice([None, ["\n\n", " the"]]),
        ignore_eos=chance.random() < 0.5,
        stream=number % 2 == 0,
        max_tokens=1 + chance.randrange(tokens),
    )
    words = " ".join(
        chance.choice("the old house in year sea of and said light".split()) for _ in range(1 + number % 90)
    )
    if number % 3 == 0:
        fields = dict(messages=[{"role": "user", "content": words}], logprobs=chance.random() < 0.3)
        return "/v1/chat/completions", {"model": "toy"} | options | fields
    fields = dict(prompt=words, echo=chance.random() < 0.2, logprobs=chance.choice([None, 0, 3]))
    return "/v1/completions", {"model": "toy"} | options | fields


def requests(server: Serve, part: Part, count: int) -> None:
    """By eight clients, with all options; over the second half memory must stay as it is."""

    async def send(client: Any, number: int) -> None:
        address, body = mixed(number, random.Random(number % 997))
        response = await client.post(address, json=body)
        part.note(response.status_code, response.text)

    asyncio.run(send_many(server, count // 2, 8, send))
    before = server.memory
    asyncio.run(send_many(server, count - count // 2, 8, send))
    part.growth = server.memory - before
    if count >= MANY and part.growth > GROWTH * (count - count // 2) / 1000:
        part.broken.append(f"{part.growth:.0f} MB more after {count - count // 2} requests")


def ended(server: Serve, part: Part, number: int) -> None:
    """A signal while eight streams and eight whole answers are under way."""

    async def send(client: Any, index: int) -> None:
        body = body_of(max_tokens=900, ignore_eos=True, stream=index % 2 == 0)
        try:
            response = await client.post("/v1/completions", json=body)
            whole = index % 2 or response.text.endswith("data: [DONE]\n\n")
            part.note(response.status_code if whole else "cut", response.text)
        except httpx2.TransportError:
            part.note("cut")

    async def all_of_them() -> None:
        asking = asyncio.ensure_future(send_many(server, 16, 16, send))
        await asyncio.sleep(2)
        server.process.send_signal(number)
        await asking

    began = time.perf_counter()
    asyncio.run(all_of_them())
    code = server.process.wait(PATIENCE)
    part.seconds = time.perf_counter() - began
    if number == signal.SIGTERM and (code != 128 + number or part.answers["cut"]):
        part.broken.append(f"SIGTERM: exit {code}, {part.answers['cut']} cut")
    check_log(server, part)
    server.start()


def check_log(server: Serve, part: Part) -> None:
    """No traceback has been written."""
    if "Traceback" in (log := server.log.read_text(errors="replace")):
        part.broken.append("a traceback: " + log[log.index("Traceback") :].strip().splitlines()[-1])
        server.log.write_text("")


ABUSES: dict[str, Callable[[Serve, Part, int], None]] = {
    "clients": clients,
    "slow": slow,
    "huge": huge,
    "bodies": bodies,
    "disconnects": disconnects,
    "requests": requests,
}
ENDS = {"SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL}


def lay_out(folder: Path) -> None:
    """The embedded pair, in float32."""
    for role in ("target", "draft"):
        shutil.copytree(ZOO / role, folder / role)
        config = json.loads((folder / role / "config.json").read_text()) | {"dtype": "float32"}
        (folder / role / "config.json").write_text(json.dumps(config))


def run(chosen: list[str], counts: dict[str, int], folder: Path) -> list[Part]:
    """All parts, one after another, on one server."""
    lay_out(folder)
    server, parts = Serve(folder), list[Part]()
    try:
        expected = texts(server)
        for name in chosen:
            parts.append(part := Part(name))
            if name in ENDS:
                ended(server, part, ENDS[name])
            else:
                with watched(server, part):
                    ABUSES[name](server, part, counts[name])
            judge(server, part, expected)
            print(f"{name}: {dict(part.answers)}, broken: {part.broken or 'nothing'}", file=sys.stderr)
    finally:
        server.process.kill()
        server.process.wait()
    return parts


def judge(server: Serve, part: Part, expected: list[str]) -> None:
    """What the part has broken."""
    check_log(server, part)
    if part.health and max(part.health) > HEALTH:
        part.broken.append(f"/health took {max(part.health):.2f} s")
    if texts(server) != expected:
        part.broken.append("another text for the same seed")


def table(parts: list[Part]) -> Table:
    """For people."""
    shown = Table("abuse", "answers", "seconds", "/health p50, ms", "p99", "most", "MB", "broken")
    for part in parts:
        answers = ", ".join(f"{count:,} x {status}" for status, count in sorted(part.answers.items()))
        times = sorted(part.health) or [0.0]
        health = (f"{1000 * times[int(q * (len(times) - 1))]:.0f}" if part.health else "" for q in (0.5, 0.99, 1))
        broken = "; ".join(dict.fromkeys(part.broken)) or "nothing"
        memory = f"{part.memory:.0f}" + ("" if part.growth is None else f" ({part.growth:+.1f})")
        shown.add_row(part.name, answers, f"{part.seconds:.0f}", *health, memory, broken[:300])
    return shown


def main(words: list[str] | None = None) -> int:
    """Abuse, print, and say how many promises were broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=[*ABUSES, *ENDS], default=[*ABUSES, *ENDS])
    parser.add_argument("--quick", action="store_true", help=f"a little of everything: {QUICK}")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        parts = run(options.only, QUICK if options.quick else FULL, Path(folder))
    Console(width=max(140, Console().width)).print(table(parts))
    return sum(len(part.broken) for part in parts)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(min(main(), 1))
