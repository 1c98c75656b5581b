"""The app: which address is answered by what."""

import time
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from json import JSONEncoder
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel

from multidraft.errors import AdviceError
from multidraft.server.answering import Answering
from multidraft.server.bodies import ChatBody, CompletionBody, DetokenizeBody, Sampled, TokenizeBody
from multidraft.server.doors import HANDLERS, content_of, locked
from multidraft.server.formats import Chat, Completion, reply
from multidraft.server.service import Service

PAGE = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
SCRIPT = b64encode(sha256(PAGE.partition("<script>")[2].partition("</script>")[0].encode()).digest()).decode()
POLICY = (  # the page's own script and this server's answers, and nothing from anywhere else
    f"default-src 'none'; script-src 'sha256-{SCRIPT}'; style-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
GUARDS = {"Content-Security-Policy": POLICY, "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff"}
PARTS = 1 << 16  # lists and dictionaries of a body: while more are made from JSON, every thread would wait
Body = TypeVar("Body", bound=BaseModel)


def build(service: Service) -> FastAPI:
    """The app over a service, which begins and is closed with it."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.begin()
        yield
        service.close()

    app = FastAPI(
        title="multidraft",
        version=version("multidraft"),
        lifespan=life,
        docs_url=None,  # these pages would fetch their scripts from elsewhere
        redoc_url=None,
        exception_handlers=HANDLERS,
    )
    app.state.service = service
    if service.api_key is not None:
        app.add_middleware(locked, key=service.api_key)
    add_models(app, service)
    add_answers(app, service)
    add_tokens(app, service)
    add_state(app, service)
    return app


def posted(
    app: FastAPI, service: Service, address: str, kind: type[Body], answer: Callable[[Request, Body], Awaitable[Any]]
) -> None:
    """Answer what is posted to an address; bodies are read in a thread, because large ones take their time."""

    async def answered(request: Request) -> Any:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise AdviceError("the body is not said to be JSON; send it with Content-Type: application/json")
        content = await content_of(request, service.limits.body, service.limits.receive)
        if (parts := content.count(b"[") + content.count(b"{")) > PARTS:
            raise AdviceError(f"the body has {parts} brackets, and {PARTS} are allowed; send less at once")
        return await answer(request, await service.aside(kind.model_validate_json, content))

    schema = {"required": True, "content": {"application/json": {"schema": kind.model_json_schema()}}}
    name = address.removeprefix("/").replace("/", "_")
    app.post(address, name=name, openapi_extra={"requestBody": schema}, response_model=None)(answered)


def add_models(app: FastAPI, service: Service) -> None:
    """Which models there are: one, by all its names."""
    card = {"object": "model", "created": int(time.time()), "owned_by": "multidraft", "root": service.name}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [one_model(name) for name in service.names]}

    @app.get("/v1/models/{name:path}")
    def one_model(name: str) -> dict[str, Any]:
        check_name(service, name)
        return {"id": name} | card | {"max_model_len": service.context}


def check_name(service: Service, name: str) -> None:
    """Raise unless it is the model that is served."""
    if name not in service.names:
        raise HTTPException(404, f"the model {name[:100]!r} does not exist; this server has {service.name!r}")


def add_answers(app: FastAPI, service: Service) -> None:
    """What generates."""

    async def answer(request: Request, body: Sampled, form: type[Completion]) -> Response:
        check_name(service, body.model)
        jobs = await service.aside(service.jobs, body)
        return await reply(request, form(Answering(service, body, jobs)))

    posted(app, service, "/v1/completions", CompletionBody, partial(answer, form=Completion))
    posted(app, service, "/v1/chat/completions", ChatBody, partial(answer, form=Chat))


def add_tokens(app: FastAPI, service: Service) -> None:
    """The tokenizer."""

    def tokens_of(body: TokenizeBody) -> Response:
        if (body.prompt is None) == (body.messages is None):
            raise AdviceError("give either a prompt or messages")
        if body.messages is not None:
            tokens = service.written(body.messages, add_generation_prompt=body.add_generation_prompt)
        else:
            tokens = service.encode(body.prompt or "", body.add_special_tokens)
        words = service.tokenizer.convert_ids_to_tokens(tokens) if body.return_token_strs else None
        known = {"count": len(tokens), "max_model_len": service.context}
        return encoded(known | {"tokens": tokens, "token_strs": words})

    def text_of(body: DetokenizeBody) -> Response:
        if strange := [token for token in body.tokens if token >= service.vocabulary]:
            raise AdviceError(f"token {strange[0]} is beyond the vocabulary, 0 to {service.vocabulary - 1}")
        return encoded({"prompt": service.tokenizer.decode(body.tokens, clean_up_tokenization_spaces=False)})

    posted(app, service, "/tokenize", TokenizeBody, lambda _, body: service.aside(tokens_of, body))
    posted(app, service, "/detokenize", DetokenizeBody, lambda _, body: service.aside(text_of, body))

    @app.get("/tokenizer_info")
    def tokenizer_info() -> dict[str, Any]:
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        known = {name: getattr(service.tokenizer, name, None) for name in names} | {"chat_template": service.template}
        kind = type(service.tokenizer).__name__
        return {"tokenizer_class": kind, "max_model_len": service.context} | known


def encoded(value: dict[str, Any]) -> Response:
    """A response in JSON, made by Python: C's way of a million tokens would keep all other threads waiting."""
    return Response("".join(JSONEncoder(ensure_ascii=False).iterencode(value)), media_type="application/json")


def add_state(app: FastAPI, service: Service) -> None:
    """How the server is, and a page to look at."""

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200 if service.engine.alive else 503)

    @app.get("/version")
    async def show_version() -> dict[str, str]:
        return {"version": app.version}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(PAGE, headers=GUARDS)
