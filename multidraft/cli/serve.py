"""`multidraft serve`: an OpenAI-compatible server over a pair of models, in this process or in replicas on Ray."""

import os
from pathlib import Path
from typing import Annotated

from typer import Option

from multidraft.cli import terminal
from multidraft.cli.names import DRAFT, TARGET
from multidraft.cli.serving import Serving, template_of
from multidraft.errors import AdviceError
from multidraft.errors.missing import optional
from multidraft.generation.defaults import SCHEME, TREE
from multidraft.server.limits import Limits

USUAL = Limits()


def serve(
    target: Annotated[str | None, Option(help=TARGET)] = None,
    draft: Annotated[str | None, Option(help=DRAFT)] = None,
    scheme: Annotated[str, Option(help="Drafting law and rule; see `multidraft schemes`.")] = SCHEME,
    tree: Annotated[str, Option(help="auto: what pays; or 4x2x2x1, '8 paths of 4', a JSON list of paths.")] = TREE,
    walk: Annotated[str, Option(help="How a tree is traversed: deferred, or commit as in the papers.")] = "deferred",
    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0 for all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0 takes any that is free.")] = 8000,
    name: Annotated[str | None, Option(help="The model's name in requests. Default: the target's.")] = None,
    api_key: Annotated[
        str | None, Option(envvar="MULTIDRAFT_API_KEY", help="Only requests that bring it are answered.")
    ] = None,
    chat_template: Annotated[Path | None, Option(help="Jinja file, in place of the tokenizer's template.")] = None,
    max_tokens_in_cache: Annotated[
        int, Option(min=1, help="Bounds the memory of keys and values.")
    ] = USUAL.tokens_in_cache,
    max_rows: Annotated[int, Option(min=1, help="Answers decoded side by side.")] = USUAL.rows,
    max_queue: Annotated[int, Option(min=1, help="Answers that wait; more get a 429.")] = USUAL.queue,
    prefill_tokens: Annotated[int, Option(min=1, help="Prompt tokens read between two steps.")] = USUAL.prefill,
    request_timeout: Annotated[
        int, Option(min=1, help="Seconds that a request may take, waiting included; then a 504.")
    ] = USUAL.request,
    drain: Annotated[int, Option(min=0, help="Seconds for what is under way when stopped.")] = USUAL.drain,
    threads: Annotated[
        int | None,
        Option(min=1, help="Threads of an engine. Default: torch's own, on Ray 1; auto may use fewer."),
    ] = None,
    ray: Annotated[
        str | None, Option(help="In replicas on Ray: HOST:PORT of a cluster, or `local`: Ray on this machine.")
    ] = None,
    replicas: Annotated[int, Option(min=1, help="With --ray: engines at least, one a GPU where there are some.")] = 1,
    most_replicas: Annotated[
        int | None, Option(min=1, help="With --ray: engines at most, by how much is asked. Default: as at least.")
    ] = None,
) -> None:
    """Serve the OpenAI API: completions and chats, streamed or whole, with the target's distribution."""
    for module, package in ("fastapi", "FastAPI"), ("uvicorn", "uvicorn"), ("prometheus_client", "prometheus-client"):
        optional(module, package, "serve")
    if api_key == "":
        raise AdviceError("--api-key is empty, so nobody could be told from anybody; give some text, or leave it out")
    limits = Limits(max_tokens_in_cache, max_rows, max_queue, prefill_tokens, drain, request_timeout)
    serving = Serving(target, draft, scheme, tree, walk, name, api_key, template_of(chat_template), limits, threads)
    serving.check()
    if ray is not None:
        return on_ray(ray, serving, host, port, replicas, most_replicas or replicas)
    if threads is not None and threads > (here := os.cpu_count() or 1):
        raise AdviceError(f"--threads {threads} is more than the {here} processors of this machine; give fewer")
    if replicas > 1 or most_replicas is not None:
        raise AdviceError("--replicas and --most-replicas are for --ray; pass it, too, or leave them out")
    from multidraft.server.running import bound, run

    with bound(host, port) as listener:
        service = serving.service()
        run(service, listener, lambda: announce(service.name, host, listener.getsockname()[1]))


def on_ray(address: str, serving: Serving, host: str, port: int, least: int, most: int) -> None:
    """Serve from replicas until stopped."""
    if least > most:
        raise AdviceError(f"--replicas {least} is more than --most-replicas {most}; give fewer, or allow more")
    optional("ray.serve", "Ray", "ray")
    from multidraft.cli.on_ray import check_address
    from multidraft.cli.replicas import run

    check_address(address)
    run(address, serving, host, port, least, most, lambda free: announce(serving.known_as, host, free))


def announce(name: str, host: str, port: int) -> None:
    """Say where it listens."""
    where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    terminal.note(f"serving {name} at {where}/v1, with a page at {where}; Ctrl-C stops")
