"""`multidraft serve`: an OpenAI-compatible server over a pair of models, in this process or in replicas on Ray."""

import logging
import os
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from multidraft.cli import options as o
from multidraft.cli import terminal
from multidraft.cli.replicas import Ready, Serving, run_on_ray, template_of
from multidraft.errors import AdviceError, optional
from multidraft.server import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI

USUAL = Limits()
SERVER, BOUNDS = "Server", "Limits"
NEEDED = {"fastapi": "FastAPI", "uvicorn": "uvicorn", "prometheus_client": "prometheus-client"}


@dataclass(frozen=True)
class Server:
    """Where it listens and who may ask; vLLM's name for an option comes first where it has the same thing."""

    host: Annotated[str, o.asked("Address to listen on; 0.0.0.0 for all of this machine's.", SERVER)] = "127.0.0.1"
    port: Annotated[int, o.asked("0 takes any that is free.", SERVER, min=0, max=65535)] = 8000
    name: Annotated[
        list[str] | None,
        o.asked("In requests; may be repeated. Default: the target's.", SERVER, "--served-model-name", "--name"),
    ] = None
    api_key: Annotated[
        str | None, o.asked("Only requests that bring it are answered.", SERVER, envvar="MULTIDRAFT_API_KEY")
    ] = None
    access_log: Annotated[bool, o.asked("A line on stderr for every request.", SERVER, "--access-log")] = False


@dataclass(frozen=True)
class Bounds:
    """What it may take on, by the names of `Limits`."""

    rows: Annotated[int, o.asked("Answers decoded side by side.", BOUNDS, "--max-num-seqs", "--max-rows", min=1)] = (
        USUAL.rows
    )
    context: Annotated[
        int | None,
        o.asked("Tokens of a sequence. Default: as many as the models can read.", BOUNDS, "--max-model-len", min=2),
    ] = None
    tokens_in_cache: Annotated[
        int, o.asked("Bounds the memory of keys and values.", BOUNDS, "--max-tokens-in-cache", min=1)
    ] = USUAL.tokens_in_cache
    queue: Annotated[int, o.asked("Answers that wait; more get a 429.", BOUNDS, "--max-queue", min=1)] = USUAL.queue
    prefill: Annotated[
        int,
        o.asked("Prompt tokens read between two steps.", BOUNDS, "--max-num-batched-tokens", "--prefill-tokens", min=1),
    ] = USUAL.prefill
    request: Annotated[
        int,
        o.asked("Seconds that a request may take, waiting included; then a 504.", BOUNDS, "--request-timeout", min=1),
    ] = USUAL.request
    drain: Annotated[int, o.asked("Seconds for what is under way when stopped.", BOUNDS, min=0)] = USUAL.drain


@dataclass(frozen=True)
class Engines:
    """What computes."""

    threads: Annotated[int | None, o.asked("Threads of an engine. Default: torch's own, on Ray 1.", o.RUN, min=1)] = (
        None
    )
    ray: Annotated[
        str | None, o.asked("In replicas on Ray: HOST:PORT of a cluster, or `local`: on this machine.", o.RUN)
    ] = None
    replicas: Annotated[int, o.asked("With --ray: engines at least, one a GPU where there are some.", o.RUN, min=1)] = 1
    most_replicas: Annotated[
        int | None, o.asked("With --ray: engines at most. Default: as at least.", o.RUN, min=1)
    ] = None


@o.grouped
def serve(
    *,
    named: o.Named,
    chat_template: Annotated[
        Path | None, o.asked("Jinja file, in place of the tokenizer's template.", o.MODELS)
    ] = None,
    drafting: o.Drafting,
    server: Server,
    bounds: Bounds,
    engines: Engines,
) -> None:
    """Serve the OpenAI API: completions and chats, streamed or whole, with the target's distribution."""
    for module, package in NEEDED.items():
        optional(module, package, "serve")
    own = {"names": tuple(server.name or ()), "api_key": server.api_key, "template": template_of(chat_template)}
    shared = asdict(named) | asdict(drafting) | {"limits": Limits(**asdict(bounds)), "threads": engines.threads}
    serving = Serving(**own | shared)
    ready = partial(announce, serving.known_as[0], server.host)
    if engines.ray is not None:
        least, most = engines.replicas, engines.most_replicas or engines.replicas
        if least > most:
            raise AdviceError(f"--replicas {least} is more than --most-replicas {most}; give fewer, or allow more")
        return run_on_ray(engines.ray, serving, server.host, server.port, least, most, ready)
    if engines.threads is not None and engines.threads > (here := os.cpu_count() or 1):
        raise AdviceError(f"--threads {engines.threads} is more than the {here} processors of this machine; give fewer")
    if engines.replicas > 1 or engines.most_replicas is not None:
        raise AdviceError("--replicas and --most-replicas are for --ray; pass it, too, or leave them out")
    if server.access_log:
        log = logging.getLogger("multidraft.access")
        log.setLevel(logging.INFO)
        log.addHandler(handler := logging.StreamHandler())
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    run_here(serving, server.host, server.port, ready)


def run_here(serving: Serving, host: str, port: int, ready: Ready) -> None:
    """Serve from this process until stopped; `ready` is called when requests are taken."""
    from multidraft.server.process import bound, run

    def load() -> "FastAPI":
        serving.check()
        return serving.app()

    with bound(host, port) as listener:
        port = listener.getsockname()[1]
        wait = f"loading {serving.known_as[0]}; {host} port {port} answers /health meanwhile"
        run(serving.limits, listener, load, lambda: terminal.note(wait), partial(ready, port))


def announce(name: str, host: str, port: int) -> None:
    """Say where it listens."""
    where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    terminal.note(f"serving {name} at {where}/v1, with a page at {where}; Ctrl-C stops")
