"""Who serves in `serve.py`: our server, plainly and with drafts, and others' where their programs are named."""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import psutil

from multidraft.errors import AdviceError

PATIENCE = 900  # seconds until a server answers: models are loaded, and one of ours measures the pair first
MODEL = {"num_speculative_tokens": 3, "draft_sample_method": "probabilistic"}  # vLLM's own default drafts argmaxes
NGRAM = ("n-grams", {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2})
STOP_SECONDS = 60  # to end by itself
LLAMA_SERVER = Path(__file__).with_name("llama_server.py")
ALL_TOKENS = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}  # to draw from: llama.cpp's server leaves most out unless told so
LLAMA_LOOKUPS = ("--looked-up", "12", "--drafted", "48")  # the best for edits
ZOO = Path(__file__).parents[1] / "multidraft" / "zoo"


class Contestant(NamedTuple):
    """A server: how it is begun, with {port} in place of the port, and what else its requests say."""

    name: str
    command: list[str]
    fields: dict[str, Any]
    health: str = "/health"  # answers when it has begun


class Server(NamedTuple):
    """A contestant that runs."""

    url: str
    process: int

    @property
    def seconds(self) -> float:
        """What it has taken of all processors so far, with the processes that it has begun."""
        total = 0.0
        for process in with_children(self.process):
            with suppress(psutil.NoSuchProcess):  # one may end meanwhile
                times = process.cpu_times()
                total += times.user + times.system
        return total

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let it run, and stop it afterwards: a server that waits for requests may keep processors busy."""
        let_run(self.process)
        try:
            yield
        finally:
            for process in with_children(self.process):
                with suppress(psutil.NoSuchProcess):
                    process.suspend()


def with_children(number: int) -> list[psutil.Process]:
    """A process, and all that it has begun."""
    first = psutil.Process(number)
    return [first, *first.children(recursive=True)]


def let_run(number: int) -> None:
    """Let a process go on, and all that it has begun."""
    for process in with_children(number):
        with suppress(psutil.NoSuchProcess):
            process.resume()


def contestants(options: argparse.Namespace) -> list[Contestant]:
    """All that take part."""
    their_target = options.their_target or options.target
    command = [sys.executable, "-c", "from multidraft.cli.main import main; main()", "serve", "--port", "{port}"]
    command += ["--target", options.target, *(["--engine", options.engine] if options.engine else [])]
    ends = {"ignore_eos": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    all_contestants = [Contestant("plain, ours", [*command, "--draft", "none"], ends)]
    all_contestants += [
        Contestant(f"{tree}, ours", [*command, "--draft", options.draft, "--tree", tree], ends) for tree in options.tree
    ]
    if options.transformers:
        theirs = [options.transformers, "serve", their_target, "--continuous-batching", "--port", "{port}"]
        all_contestants.append(Contestant("transformers serve", theirs, {}))
    if options.vllm:
        theirs = [options.vllm, "serve", their_target, "--port", "{port}", "--max-model-len", str(options.context)]
        theirs += ["--served-model-name", options.target]
        theirs += ["--gpu-memory-utilization", "0.15"]  # on a CPU: of its memory, which the servers share
        name, drafts = ("draft model", MODEL | {"model": options.draft}) if Path(options.draft).is_dir() else NGRAM
        all_contestants += [Contestant("vllm", theirs, ends)]
        all_contestants += [Contestant(f"vllm, {name}", [*theirs, "--speculative-config", json.dumps(drafts)], ends)]
    if options.llama_server:
        slots = ["--slots", str(max([1, *options.clients])), "--context", str(options.context)]
        for name, drafts in {"llama.cpp's server": "none", "llama.cpp's server, look-ups": "ngram"}.items():
            theirs = [options.llama_server, str(LLAMA_SERVER), "{port}", their_target, drafts, *slots, *LLAMA_LOOKUPS]
            fields = {"ignore_eos": True} | ALL_TOKENS
            all_contestants.append(Contestant(name, [*theirs, "--threads", str(options.threads)], fields))
    return all_contestants


def cores() -> list[int]:
    """The processors that we may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def with_threads(count: int) -> dict[str, str]:
    """An environment in which a server computes with so many threads: vLLM takes the processors that it is to use."""
    return os.environ | {
        "OMP_NUM_THREADS": str(count),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores()[:count])),
    }


@contextmanager
def running(contestant: Contestant, log: Path, threads: int) -> Iterator[Server]:
    """A contestant's server, which runs until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [part.replace("{port}", str(port)) for part in contestant.command]
    settings = with_threads(threads)
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=settings) as process:
        try:
            wait(f"http://127.0.0.1:{port}{contestant.health}", process, contestant.name, log)
            yield Server(f"http://127.0.0.1:{port}", process.pid)
        finally:
            stop(process)


def stop(process: subprocess.Popen) -> None:
    """End a server, and what it has begun if it does not."""
    begun = list[psutil.Process]()
    if process.poll() is None:
        let_run(process.pid)
        begun = with_children(process.pid)[1:]
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    process.kill()
    for child in begun:
        with suppress(psutil.NoSuchProcess):
            child.kill()


def wait(address: str, process: subprocess.Popen, name: str, log: Path) -> None:
    """Until it answers."""
    end = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:
        try:
            if httpx2.get(address).status_code == 200:
                return
        except httpx2.TransportError:
            time.sleep(1)  # asking costs, and one of ours measures meanwhile
    last = (log.read_text(errors="replace").strip().splitlines() or ["nothing was said"])[-1]
    raise AdviceError(f"the server {name!r} did not begin ({last}); see {log}, or leave it out")
