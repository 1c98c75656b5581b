"""`multidraft serve`: an OpenAI-compatible server over a pair of models, in this process or in replicas on Ray."""

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from multidraft.cli import options as o
from multidraft.cli import terminal
from multidraft.cli.serving import Serving, template_of
from multidraft.errors import AdviceError
from multidraft.errors.missing import optional
from multidraft.generation.defaults import SCHEME, TREE, TUNE_BUDGET
from multidraft.server.limits import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI

USUAL = Limits()
SERVER, BOUNDS = "Server", "Limits"


def asked(text: str, *names: str, panel: str = SERVER, **more: Any) -> Any:
    """An option of the server; vLLM's name comes first where it has the same thing."""
    return Option(*names, help=text, rich_help_panel=panel, **more)


def serve(
    target: o.Target = None,
    draft: o.Draft = None,
    engine: o.Engine = None,
    trust_remote_code: o.Trust = False,
    chat_template: Annotated[
        Path | None, asked("Jinja file, in place of the tokenizer's template.", panel=o.MODELS)
    ] = None,
    scheme: o.Scheme = SCHEME,
    tree: o.Tree = TREE,
    plan: o.Plan = None,
    tune_budget: o.TuneBudget = TUNE_BUDGET,
    walk: o.Walk = "deferred",
    host: Annotated[str, asked("Address to listen on; 0.0.0.0 for all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, asked("0 takes any that is free.", min=0, max=65535)] = 8000,
    name: Annotated[
        list[str] | None,
        asked("In requests; may be repeated. Default: the target's.", "--served-model-name", "--name"),
    ] = None,
    api_key: Annotated[
        str | None, asked("Only requests that bring it are answered.", envvar="MULTIDRAFT_API_KEY")
    ] = None,
    access_log: Annotated[bool, asked("A line on stderr for every request.", "--access-log")] = False,
    max_rows: Annotated[
        int, asked("Answers decoded side by side.", "--max-num-seqs", "--max-rows", panel=BOUNDS, min=1)
    ] = USUAL.rows,
    max_model_len: Annotated[
        int | None, asked("Tokens of a sequence. Default: as many as the models can read.", panel=BOUNDS, min=2)
    ] = None,
    max_tokens_in_cache: Annotated[
        int, asked("Bounds the memory of keys and values.", panel=BOUNDS, min=1)
    ] = USUAL.tokens_in_cache,
    max_queue: Annotated[int, asked("Answers that wait; more get a 429.", panel=BOUNDS, min=1)] = USUAL.queue,
    prefill_tokens: Annotated[
        int,
        asked(
            "Prompt tokens read between two steps.",
            "--max-num-batched-tokens",
            "--prefill-tokens",
            panel=BOUNDS,
            min=1,
        ),
    ] = USUAL.prefill,
    request_timeout: Annotated[
        int, asked("Seconds that a request may take, waiting included; then a 504.", panel=BOUNDS, min=1)
    ] = USUAL.request,
    drain: Annotated[int, asked("Seconds for what is under way when stopped.", panel=BOUNDS, min=0)] = USUAL.drain,
    threads: Annotated[
        int | None, asked("Threads of an engine. Default: torch's own, on Ray 1.", panel=o.RUN, min=1)
    ] = None,
    ray: Annotated[
        str | None, asked("In replicas on Ray: HOST:PORT of a cluster, or `local`: on this machine.", panel=o.RUN)
    ] = None,
    replicas: Annotated[
        int, asked("With --ray: engines at least, one a GPU where there are some.", panel=o.RUN, min=1)
    ] = 1,
    most_replicas: Annotated[
        int | None, asked("With --ray: engines at most. Default: as at least.", panel=o.RUN, min=1)
    ] = None,
) -> None:
    """Serve the OpenAI API: completions and chats, streamed or whole, with the target's distribution."""
    for module, package in ("fastapi", "FastAPI"), ("uvicorn", "uvicorn"), ("prometheus_client", "prometheus-client"):
        optional(module, package, "serve")
    limits = Limits(
        tokens_in_cache=max_tokens_in_cache,
        rows=max_rows,
        context=max_model_len,
        queue=max_queue,
        prefill=prefill_tokens,
        drain=drain,
        request=request_timeout,
    )
    template, names = template_of(chat_template), tuple(name or ())
    serving = Serving(target, draft, scheme, tree, walk, names, api_key, template, limits, threads, plan, tune_budget)
    serving = replace(serving, engine=engine, trust=trust_remote_code)
    if ray is not None:
        return on_ray(ray, serving, host, port, replicas, most_replicas or replicas)
    if threads is not None and threads > (here := os.cpu_count() or 1):
        raise AdviceError(f"--threads {threads} is more than the {here} processors of this machine; give fewer")
    if replicas > 1 or most_replicas is not None:
        raise AdviceError("--replicas and --most-replicas are for --ray; pass it, too, or leave them out")
    here_and_now(serving, host, port, access_log)


def here_and_now(serving: Serving, host: str, port: int, access_log: bool) -> None:
    """Serve from this process until stopped."""
    from multidraft.server.process import bound, run

    if access_log:
        log = logging.getLogger("multidraft.access")
        log.setLevel(logging.INFO)
        log.addHandler(handler := logging.StreamHandler())
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))

    def load() -> "FastAPI":
        serving.check()
        return serving.app()

    name = serving.known_as[0]
    with bound(host, port) as listener:
        port = listener.getsockname()[1]
        wait = f"loading {name}; {host} port {port} answers /health meanwhile"
        run(serving.limits, listener, load, lambda: terminal.note(wait), lambda: announce(name, host, port))


def on_ray(address: str, serving: Serving, host: str, port: int, least: int, most: int) -> None:
    """Serve from replicas until stopped."""
    if least > most:
        raise AdviceError(f"--replicas {least} is more than --most-replicas {most}; give fewer, or allow more")
    serving.check()
    optional("ray.serve", "Ray", "ray")
    from multidraft.cli.on_ray import check_address
    from multidraft.cli.replicas import run

    check_address(address)
    run(address, serving, host, port, least, most, lambda free: announce(serving.known_as[0], host, free))


def announce(name: str, host: str, port: int) -> None:
    """Say where it listens."""
    where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    terminal.note(f"serving {name} at {where}/v1, with a page at {where}; Ctrl-C stops")
