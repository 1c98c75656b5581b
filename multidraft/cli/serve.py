"""`multidraft serve`: an OpenAI-compatible server over a pair of models, in this process or in replicas on Ray."""

import json
import logging
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from multidraft.cli import options as o
from multidraft.cli import terminal
from multidraft.cli.drafter_names import check_looks_up
from multidraft.cli.engines import Loader
from multidraft.cli.pair import check_names, default_pair, pair_note
from multidraft.cli.replicas import ReadyCallback, run_on_ray
from multidraft.cli.serving import Serving
from multidraft.errors import AdviceError, optional
from multidraft.server import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI

SERVER_PANEL = "Server"
KEY_VARIABLE = "MULTIDRAFT_API_KEY"
REMEMBER_HELP = "Tokens of earlier prompts and answers that look-ups draft from: of one API key; without keys, of all."
SERVE_MODULES = {"fastapi": "FastAPI", "uvicorn": "uvicorn", "prometheus_client": "prometheus-client"} | {
    "llguidance": "llguidance"
}


@dataclass(frozen=True)
class ServerOptions:
    """Address, names, key and log; an option that vLLM has, too, lists vLLM's name first."""

    host: Annotated[str, o.option("Address to listen on; 0.0.0.0 for all of this machine's.", SERVER_PANEL)] = (
        "127.0.0.1"
    )
    port: Annotated[int, o.option("0 takes any free port.", SERVER_PANEL, min=0, max=65535)] = 8000
    name: Annotated[
        list[str] | None,
        o.option("In requests; may be repeated. Default: the target's.", SERVER_PANEL, "--served-model-name", "--name"),
    ] = None
    api_key: Annotated[
        list[str] | None,
        o.option("Required of requests, as a bearer token; one a client.", SERVER_PANEL, envvar=KEY_VARIABLE),
    ] = None
    allowed_origins: Annotated[
        list[str] | None,
        o.option("Sites whose pages may use the server, or *; may be repeated.", SERVER_PANEL, "--allowed-origins"),
    ] = None
    access_log: Annotated[bool, o.option("A line on stderr for every request.", SERVER_PANEL, "--access-log")] = False


LIMIT_OPTIONS: dict[
    str, tuple[Any, ...]
] = {  # fields of `Limits`: help, minimum, and option names other than the field's
    "rows": ("Answers decoded side by side.", 1, "--max-num-seqs", "--max-rows"),
    "context": ("Tokens of a sequence. Default: as many as the models can read.", 2, "--max-model-len"),
    "tokens_in_cache": ("Bounds the memory of keys and values.", 1, "--max-tokens-in-cache"),
    "queue": ("Answers that wait; more get a 429.", 1, "--max-queue"),
    "remember": (REMEMBER_HELP, 0),
    "prefill": ("Prompt tokens read between two steps.", 1, "--max-num-batched-tokens", "--prefill-tokens"),
    "request": ("Seconds that a request may take, waiting included; then a 504.", 1, "--request-timeout"),
    "drain": ("Seconds that running answers get when the server is stopped.", 0),
}
LIMIT_TYPES = get_type_hints(Limits)
LimitOptions: Any = make_dataclass(
    "LimitOptions",
    [
        (name, Annotated[LIMIT_TYPES[name], o.option(text, "Limits", *names, min=minimum)], getattr(Limits, name))
        for name, (text, minimum, *names) in LIMIT_OPTIONS.items()
    ],
    frozen=True,
)


@dataclass(frozen=True)
class EngineOptions:
    """Threads and replicas."""

    threads: Annotated[int | None, o.option("Threads of an engine. Default: torch's own, on Ray 1.", o.RUN, min=1)] = (
        None
    )
    ray: Annotated[
        str | None, o.option("Run replicas on Ray: HOST:PORT of a cluster, or `local` for this machine.", o.RUN)
    ] = None
    replicas: Annotated[
        int, o.option("With --ray: minimum of engines, one per GPU if there are GPUs.", o.RUN, min=1)
    ] = 1
    most_replicas: Annotated[
        int | None, o.option("With --ray: maximum of engines. Default: the minimum.", o.RUN, min=1)
    ] = None


@o.flatten_options
def serve(
    *,
    models: o.ModelOptions,
    chat_template: Annotated[
        Path | None, o.option("Jinja file, in place of the tokenizer's template.", o.MODELS)
    ] = None,
    drafting: o.DraftingOptions,
    server: ServerOptions,
    limits: LimitOptions,
    engines: EngineOptions,
) -> None:
    """Serve the OpenAI API: completions and chats, streamed or whole, with the target's distribution."""
    for module, package in SERVE_MODULES.items():
        optional(module, package, "serve")
    o.check_drafting(drafting.scheme, drafting.tree, drafting.plan)
    pair = default_pair(models.target, models.draft, Loader(models.named_engine).heads_pay)
    if engines.ray is None:  # else they are where the workers are
        check_names(*pair, models.named_engine, models.corpus)
    if limits.remember:
        check_looks_up("--remember", pair[1])
    if not server.api_key and os.environ.get(KEY_VARIABLE):
        raise AdviceError(f"{KEY_VARIABLE} is empty; set a key, or drop the variable")
    names, template = tuple(server.name or ()), template_of(chat_template)
    shared = asdict(models) | asdict(drafting) | {"limits": Limits(**asdict(limits)), "threads": engines.threads}
    origins = origins_of(server.allowed_origins or ())
    serving = Serving(
        **shared, names=names, api_keys=tuple(server.api_key or ()), allowed_origins=origins, template=template
    )

    def ready(port: int) -> None:
        where = f"http://{f'[{server.host}]' if ':' in server.host else server.host}:{port}"
        terminal.note(f"serving {serving.served_names[0]} at {where}/v1, with a page at {where}; Ctrl-C stops")
        if line := pair_note(*pair, (models.target, models.draft)):
            terminal.note(line)

    if engines.ray is not None:
        low, high = engines.replicas, engines.most_replicas or engines.replicas
        if low > high:
            raise AdviceError(f"--replicas {low} is more than --most-replicas {high}; give fewer, or allow more")
        return run_on_ray(engines.ray, serving, server.host, server.port, low, high, ready)
    o.check_threads(engines.threads)
    if engines.replicas > 1 or engines.most_replicas is not None:
        raise AdviceError("--replicas and --most-replicas are for --ray; pass it, too, or leave them out")
    if server.access_log:
        access_log = logging.getLogger("multidraft.access")
        access_log.setLevel(logging.INFO)
        access_log.addHandler(handler := logging.StreamHandler())
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    run_here(serving, server.host, server.port, ready)


def origins_of(values: Iterable[str]) -> tuple[str, ...]:
    """The origins in an option's values; one may be a JSON list of them, as vLLM has it.

    >>> origins_of(['["https://a.org", "https://b.org"]', "https://c.org"])
    ('https://a.org', 'https://b.org', 'https://c.org')
    """
    origins = list[str]()
    for value in values:
        try:
            listed = json.loads(value) if value.startswith("[") else [value]
        except ValueError:
            listed = [value]
        origins += map(str, listed)
    return tuple(origins)


def template_of(path: Path | None) -> str | None:
    """The text of a file with a chat template."""
    if path is None:
        return None
    from jinja2 import TemplateSyntaxError
    from transformers.utils.chat_template_utils import _compile_jinja_template  # which knows tags of its own

    try:
        text = path.read_text(encoding="utf-8")
        _compile_jinja_template(text)
    except (OSError, UnicodeError, TemplateSyntaxError) as error:
        raise AdviceError(f"cannot read the chat template {str(path)!r}: {error}; check the file") from None
    return text


def run_here(serving: Serving, host: str, port: int, ready: ReadyCallback) -> None:
    """Serve from this process until stopped; `ready` is called when requests are taken."""
    from multidraft.server.process import bind_socket, run

    def load() -> "FastAPI":
        serving.check()
        return serving.app()

    with bind_socket(host, port) as listener:
        port = listener.getsockname()[1]
        loading_note = f"loading {serving.served_names[0]}; {host} port {port} answers /health meanwhile"
        run(serving.limits, listener, load, lambda: terminal.note(loading_note), lambda: ready(port))
