"""`multidraft serve`: an OpenAI-compatible server over a pair of models, in this process or in replicas on Ray."""

import logging
import os
from dataclasses import asdict, dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from multidraft.cli import options as o
from multidraft.cli import terminal
from multidraft.cli.replicas import Ready, Serving, run_on_ray
from multidraft.errors import AdviceError, optional
from multidraft.server import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI

SERVER = "Server"
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


BOUNDED: dict[str, tuple[Any, ...]] = {  # fields of `Limits`: help, the least, and other names than the field's
    "rows": ("Answers decoded side by side.", 1, "--max-num-seqs", "--max-rows"),
    "context": ("Tokens of a sequence. Default: as many as the models can read.", 2, "--max-model-len"),
    "tokens_in_cache": ("Bounds the memory of keys and values.", 1, "--max-tokens-in-cache"),
    "queue": ("Answers that wait; more get a 429.", 1, "--max-queue"),
    "prefill": ("Prompt tokens read between two steps.", 1, "--max-num-batched-tokens", "--prefill-tokens"),
    "request": ("Seconds that a request may take, waiting included; then a 504.", 1, "--request-timeout"),
    "drain": ("Seconds for what is under way when stopped.", 0),
}
KINDS = get_type_hints(Limits)
Bounds: Any = make_dataclass(
    "Bounds",
    [
        (name, Annotated[KINDS[name], o.asked(text, "Limits", *names, min=least)], getattr(Limits, name))
        for name, (text, least, *names) in BOUNDED.items()
    ],
    frozen=True,
)


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

    def ready(port: int) -> None:
        where = f"http://{f'[{server.host}]' if ':' in server.host else server.host}:{port}"
        terminal.note(f"serving {serving.known_as[0]} at {where}/v1, with a page at {where}; Ctrl-C stops")

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


def template_of(path: Path | None) -> str | None:
    """The text of a file with a chat template."""
    if path is None:
        return None
    from jinja2 import Environment, TemplateSyntaxError

    try:
        text = path.read_text(encoding="utf-8")
        Environment(extensions=["jinja2.ext.loopcontrols"]).parse(text)
    except (OSError, UnicodeError, TemplateSyntaxError) as error:
        raise AdviceError(f"cannot read the chat template {str(path)!r}: {error}; check the file") from None
    return text


def run_here(serving: Serving, host: str, port: int, ready: Ready) -> None:
    """Serve from this process until stopped; `ready` is called when requests are taken."""
    from multidraft.server.process import bind_socket, run

    def load() -> "FastAPI":
        serving.check()
        return serving.app()

    with bind_socket(host, port) as listener:
        port = listener.getsockname()[1]
        wait = f"loading {serving.known_as[0]}; {host} port {port} answers /health meanwhile"
        run(serving.limits, listener, load, lambda: terminal.note(wait), lambda: ready(port))
