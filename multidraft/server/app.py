"""The app: which address is answered by what, and what every request has to pass first."""

import asyncio
import secrets
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from json import JSONEncoder
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from multidraft.errors import AdviceError
from multidraft.server import Refused
from multidraft.server.answers import Chat, Completion, reply
from multidraft.server.bodies import ChatBody, CompletionBody, DetokenizeBody, Sampled, TokenizeBody
from multidraft.server.process import refusal
from multidraft.server.service import Service

PAGE = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
SCRIPT = b64encode(sha256(PAGE.partition("<script>")[2].partition("</script>")[0].encode()).digest()).decode()
POLICY = (  # the page's own script and this server's answers, and nothing from anywhere else
    f"default-src 'none'; script-src 'sha256-{SCRIPT}'; style-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
GUARDS = {"Content-Security-Policy": POLICY, "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff"}
PARTS = 1 << 16  # lists and dictionaries of a body: while more are made from JSON, every thread would wait
OPEN = {"/", "/health", "/metrics"}  # what needs no key
FAULTS: Any = (ValidationError, AdviceError, Refused, ClientDisconnect, AnyHTTPException, Exception)


def build(service: Service) -> FastAPI:
    """The app over a service, which begins and is closed with it."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.begin()
        yield
        service.close()

    async def handle(request: Request, error: Exception) -> JSONResponse:
        return refusal(error, request.scope.get("request_id", ""))

    app = FastAPI(
        title="multidraft",
        version=version("multidraft"),
        lifespan=life,
        docs_url=None,  # these pages would fetch their scripts from elsewhere
        redoc_url=None,
        exception_handlers=dict.fromkeys(FAULTS, handle),
    )
    app.state.service = service
    if service.api_key is not None:
        app.add_middleware(locked, key=service.api_key)
    add_answers(app, service)
    add_tokens(app, service)
    add_state(app, service)
    return app


def locked(app: ASGIApp, key: str) -> ASGIApp:
    """Answers 401, before anything else is looked at, unless a request brings the key as a bearer token (RFC 6750)."""
    wrong = HTTPException(401, "the API key is missing or wrong; send it as a bearer token")

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            form, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
            if form.lower() != "bearer" or not secrets.compare_digest(given.strip().encode(), key.encode()):
                return await refusal(wrong)(scope, receive, send)
        await app(scope, receive, send)

    return answer


async def content_of(request: Request, most: int, seconds: float | int) -> bytes:
    """A body in JSON, unless it comes too slowly, or has too many parts, or bytes, whatever its headers say."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise AdviceError("the body is not said to be JSON; send it with Content-Type: application/json")
    content = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                content += part
                if len(content) > most:
                    raise HTTPException(413, f"the body has more than {most} bytes; send less")
    except TimeoutError:
        raise HTTPException(408, f"the body has not come within {seconds} seconds; send faster") from None
    if (parts := content.count(b"[") + content.count(b"{")) > PARTS:
        raise AdviceError(f"the body has {parts} brackets, and {PARTS} are allowed; send less at once")
    return bytes(content)


def posted(
    app: FastAPI, service: Service, address: str, kind: type[BaseModel], answer: Callable[[Request, Any], Awaitable]
) -> None:
    """Answer what is posted to an address; bodies are read in a thread, because large ones take their time."""

    async def answered(request: Request) -> Any:
        content = await content_of(request, service.limits.body, service.limits.receive)
        return await answer(request, await service.aside(kind.model_validate_json, content))

    schema = {"required": True, "content": {"application/json": {"schema": kind.model_json_schema()}}}
    name = address.removeprefix("/").replace("/", "_")
    app.post(address, name=name, openapi_extra={"requestBody": schema}, response_model=None)(answered)


def check_name(service: Service, name: str) -> None:
    """Raise unless it is the model that is served."""
    if name not in service.names:
        raise HTTPException(404, f"the model {name[:100]!r} does not exist; this server has {service.names[0]!r}")


def add_answers(app: FastAPI, service: Service) -> None:
    """What generates."""

    async def answer(request: Request, body: Sampled, form: type[Completion]) -> Response:
        check_name(service, body.model)
        jobs = await service.aside(service.jobs, body)
        return await reply(request, form(service, body, jobs, request.scope.get("request_id", "")))

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
    """How the server is, which models there are (one, by all its names), and a page to look at."""
    card = {"object": "model", "created": int(time.time()), "owned_by": "multidraft", "root": service.names[0]}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [one_model(name) for name in service.names]}

    @app.get("/v1/models/{name:path}")
    def one_model(name: str) -> dict[str, Any]:
        check_name(service, name)
        return {"id": name} | card | {"max_model_len": service.context}

    @app.get("/health")
    async def health() -> JSONResponse:
        engine = service.engine
        status = "stopping" if not engine.alive else "recovering" if engine.failures else "ok"
        return JSONResponse({"status": status, "faults": engine.faults}, 200 if engine.alive else 503)

    @app.get("/version")
    async def show_version() -> dict[str, str]:
        return {"version": app.version}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(PAGE, headers=GUARDS)
