"""`multidraft serve`: an OpenAI-compatible server over a pair of models."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from multidraft.commands import terminal
from multidraft.commands.capture import DEMO
from multidraft.commands.drafters import HELP, Models, load, parse
from multidraft.commands.generate import context
from multidraft.commands.prompts import encode, read_prompts
from multidraft.errors import AdviceError
from multidraft.errors.missing import optional
from multidraft.generation.defaults import SCHEME, TREE
from multidraft.server.limits import Limits

if TYPE_CHECKING:
    from multidraft.decoding.state import Plan
    from multidraft.server.service import Service

USUAL = Limits()


def serve(
    target: Annotated[str | None, Option(help="Target model: a folder or a hub name. Default: embedded.")] = None,
    draft: Annotated[str | None, Option(help=HELP)] = None,
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
        int, Option(min=1, help="Bounds the memory of keys and values: rows times the longest.")
    ] = USUAL.tokens_in_cache,
    max_rows: Annotated[int, Option(min=1, help="Answers decoded side by side.")] = USUAL.rows,
    max_queue: Annotated[int, Option(min=1, help="Answers that wait; more get a 429.")] = USUAL.queue,
    prefill_tokens: Annotated[int, Option(min=1, help="Prompt tokens read between two steps.")] = USUAL.prefill,
    request_timeout: Annotated[
        int, Option(min=1, help="Seconds that a request may take, waiting included; then a 504.")
    ] = USUAL.request,
    drain: Annotated[int, Option(min=0, help="Seconds for what is under way when stopped.")] = USUAL.drain,
) -> None:
    """Serve the OpenAI API: completions and chats, streamed or whole, with the target's distribution."""
    for module, package in ("fastapi", "FastAPI"), ("uvicorn", "uvicorn"), ("prometheus_client", "prometheus-client"):
        optional(module, package, "serve")
    if api_key == "":
        raise AdviceError("--api-key is empty, so nobody could be told from anybody; give some text, or leave it out")
    limits = Limits(max_tokens_in_cache, max_rows, max_queue, prefill_tokens, drain, request_timeout)
    plan, template = plan_of(scheme, tree, walk, draft), template_of(chat_template)
    from multidraft.server.running import bound, run

    with bound(host, port) as listener:
        models = load(target, draft)
        plan = with_choice(plan, models, tree)
        service = service_of(models, plan, limits, name or target or "embedded", api_key, template)
        where = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        if not models.tokenizer.chat_template:
            terminal.note("the tokenizer has no chat template: messages are joined by line breaks (--chat-template)")
        line = f"serving {service.name} at {where}/v1, with a page at {where}; Ctrl-C stops"
        run(service, listener, lambda: terminal.note(line))


def plan_of(scheme: str, tree: str, walk: str, draft: str | None) -> "Plan":
    """How to decode; raises on what cannot work, before anything is loaded."""
    from multidraft.generation.inputs import check_drafters, limits_of, make_plan, tree_or_fixed
    from multidraft.sampling.settings import Sampling

    plan = make_plan(scheme, tree_or_fixed(tree), walk, Sampling(), False)
    check_drafters(plan.scheme, len(parse(draft)) > 1)
    limits_of(tree, scheme)
    return plan


def with_choice(plan: "Plan", models: Models, tree: str) -> "Plan":
    """The plan, with trees that are chosen by the rows under way if that is asked for, and the threads for them."""
    from multidraft.generation.inputs import limits_of

    choice = limits_of(tree, plan.scheme)
    if choice is None:
        return plan
    import torch

    from multidraft.planning.steering import steered

    prompts = read_prompts(None, DEMO, None)
    encode(prompts, models.tokenizer, context(models))
    plan, threads = steered(plan, models.target, models.draft, [prompt.tokens for prompt in prompts], choice, None)
    torch.set_num_threads(threads)
    return plan


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


def service_of(
    models: Models, plan: "Plan", limits: Limits, name: str, api_key: str | None, template: str | None
) -> "Service":
    """The service over loaded models."""
    from multidraft.server.engine import Engine
    from multidraft.server.service import Service

    if template is not None:
        models.tokenizer.chat_template = template
    return Service(Engine(models.target, models.draft, plan, limits), models.tokenizer, name, limits, api_key)
