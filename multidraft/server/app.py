"""The app: its routes, and the checks that every request passes first."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from json import JSONEncoder
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from multidraft.errors import AdviceError
from multidraft.server import Refused
from multidraft.server.answers import Chat, Completion, reply
from multidraft.server.docs import docs_page
from multidraft.server.page import PAGE, html_response
from multidraft.server.process import error_response
from multidraft.server.request_bodies import ChatBody, CompletionBody, DetokenizeBody, GenerationBody, TokenizeBody
from multidraft.server.request_fields import ADDRESSES, FIELDS, IGNORED_HEADER, header_of
from multidraft.server.responses import Responses, ResponsesBody
from multidraft.server.service import PLAIN_TEMPLATE, Service

MAX_BRACKETS = 1 << 16  # of a body: parsing more JSON lists and objects would block every thread for too long
NOT_SERVED = {  # why, by a part of an address that other servers have
    "embed": ": this server makes no embeddings",
    "rerank": ": this server ranks nothing",
    "score": ": this server compares no texts (echo and logprobs in /v1/completions score one)",
    "classify": ": this server classifies nothing",
    "pooling": ": this server has no pooling models",
    "moderations": ": this server judges no texts",
    **dict.fromkeys(("audio", "images", "videos", "realtime"), ": text is read and written here, and nothing else"),
    **dict.fromkeys(("files", "batches", "vector_stores", "assistants", "threads", "uploads"), ": nothing is stored"),
    **dict.fromkeys(("conversations", "/v1/responses/", "/v1/chat/completions/"), ": nothing is stored"),
    "fine_tuning": ": nothing is trained here",
    "lora": ": one model is served, without adapters",
    "/v1/messages": ": this server speaks OpenAI's API, not Anthropic's",
    "/api/": ": this server speaks OpenAI's API, not Ollama's",
    "infill": ": text is continued, not filled in",
    **dict.fromkeys(("/completion", "/generate", "/invocations"), ": this server speaks OpenAI's API"),
    "apply-template": ": /tokenize shows the prompt of a chat",
    **dict.fromkeys(("/props", "/slots", "/get_model_info", "/get_server_info"), ": see /v1/models and /metrics"),
}
ERROR_FIELDS = {name: {"type": ["string", "null"]} for name in ("message", "type", "param")} | {
    "code": {"type": "integer"}
}
ERROR_SCHEMA = {"type": "object", "properties": {"error": {"type": "object", "properties": ERROR_FIELDS}}}
ERRORS: dict[int | str, dict[str, Any]] = {  # as the schema has them
    status: {"description": text, "content": {"application/json": {"schema": ERROR_SCHEMA}}}
    for status, text in (("4XX", "A request that cannot be answered."), ("5XX", "Not now, or a fault."))
}
PUBLIC_PATHS = {"/", "/health", "/metrics"}  # that need no key
HANDLED_ERRORS: Any = (ValidationError, AdviceError, Refused, ClientDisconnect, AnyHTTPException, Exception)


def build(service: Service) -> FastAPI:
    """The app over a service; the app's lifespan starts and closes the service."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.begin()
        yield
        service.close()

    async def handle(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, AnyHTTPException) and error.detail in ("Not Found", "Method Not Allowed"):
            path, allowed = request.url.path, dict(error.headers or {}).get("Allow")
            other_method = f"{path[:100]} takes {allowed}, not {request.method}; see /docs"
            error = HTTPException(error.status_code, other_method if allowed else unknown_address(path), error.headers)
        return error_response(error, request.scope.get("request_id", ""))

    app = FastAPI(
        title="multidraft",
        version=version("multidraft"),
        lifespan=lifespan,
        docs_url=None,  # these pages would load scripts from other sites
        redoc_url=None,
        responses=ERRORS,
        exception_handlers=dict.fromkeys(HANDLED_ERRORS, handle),
    )
    app.state.service = service
    if service.api_keys:
        app.add_middleware(with_api_key, keys=service.api_keys)
    if service.allowed_origins:  # outermost, because a browser asks without the key what it may ask
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.allowed_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", IGNORED_HEADER, "retry-after"],
        )
    add_answers(app, service)
    add_tokens(app, service)
    add_state(app, service)
    return app


def unknown_address(path: str) -> str:
    """What is said of an address that is not there."""
    reason = next((reason for part, reason in NOT_SERVED.items() if part in path.lower()), "")
    return f"{path[:100]} is not served{reason}; there are {', '.join(ADDRESSES.values())}, and more at /docs"


def with_api_key(app: ASGIApp, keys: Sequence[str]) -> ASGIApp:
    """Answer 401 unless the request has an API key as a bearer token (RFC 6750), its owner; this is checked first."""
    unauthorized = HTTPException(401, "the API key is missing or wrong; send it as a bearer token")

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in PUBLIC_PATHS:
            auth_scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
            owners = [key for key in keys if secrets.compare_digest(token.strip().encode(), key.encode())]
            if auth_scheme.lower() != "bearer" or not owners:
                return await error_response(unauthorized)(scope, receive, send)
            scope["owner"] = owners[0]
        await app(scope, receive, send)

    return answer


async def read_json_body(request: Request, max_bytes: int, seconds: float | int) -> bytes:
    """The bytes of a JSON body; raises if it is too slow, too long, or has too many lists and objects."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise AdviceError("the Content-Type is not JSON; send the body with Content-Type: application/json")
    content = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                content += chunk
                if len(content) > max_bytes:
                    raise HTTPException(413, f"the body has more than {max_bytes} bytes; send less")
    except TimeoutError:
        raise HTTPException(408, f"the body has not come within {seconds} seconds; send faster") from None
    if (brackets := content.count(b"[") + content.count(b"{")) > MAX_BRACKETS:
        raise AdviceError(f"the body has {brackets} brackets, and {MAX_BRACKETS} are allowed; send less at once")
    return bytes(content)


def add_post_route(
    app: FastAPI, service: Service, path: str, body_type: type[BaseModel], answer: Callable[[Request, Any], Awaitable]
) -> None:
    """Add a POST route; bodies are parsed in a worker thread, because large ones take long."""

    async def handle(request: Request) -> Any:
        content = await read_json_body(request, service.limits.body, service.limits.receive)
        return await answer(request, await service.in_worker(body_type.model_validate_json, content))

    body_schema = body_type.model_json_schema()
    for field, known in body_schema.get("properties", {}).items():
        known.setdefault("description", FIELDS[field].about if field in FIELDS else "")
        known |= {"enum": service.names} if field == "model" and known.get("type") == "string" else {}
    schema = {"required": True, "content": {"application/json": {"schema": body_schema}}}
    name = path.removeprefix("/").replace("/", "_")
    forms: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}, "text/event-stream": {}}}}
    responses = forms if path in ADDRESSES.values() else None
    app.post(path, name=name, openapi_extra={"requestBody": schema}, response_model=None, responses=responses)(handle)


def with_ignored_names(response: Response, names: list[str]) -> Response:
    """A response with the names of the fields that had no effect in a header."""
    if names:
        response.headers[IGNORED_HEADER] = header_of(names)
    return response


def check_name(service: Service, name: str) -> None:
    """Raise 404 unless it is a name of the served model."""
    if name not in service.names:
        raise HTTPException(404, f"the model {name[:100]!r} does not exist; this server has {service.names[0]!r}")


def add_answers(app: FastAPI, service: Service) -> None:
    """Add the routes that generate text."""

    async def answer(request: Request, body: GenerationBody, response_type: type[Completion]) -> Response:
        check_name(service, body.model)
        engine_requests = await service.in_worker(service.make_requests, body, request.scope.get("owner", ""))
        ignored = await service.in_worker(body.ignored_names, service.template_of(body))
        answers = response_type(service, body, engine_requests, request.scope.get("request_id", ""))
        return with_ignored_names(await reply(request, answers), ignored)

    add_post_route(app, service, "/v1/completions", CompletionBody, partial(answer, response_type=Completion))
    add_post_route(app, service, "/v1/chat/completions", ChatBody, partial(answer, response_type=Chat))

    async def respond(request: Request, body: ResponsesBody) -> Response:
        check_name(service, body.model)
        chat = await service.in_worker(body.as_chat)
        engine_requests = await service.in_worker(service.make_requests, chat, request.scope.get("owner", ""))
        ignored = await service.in_worker(body.ignored_names, service.template_of(chat))
        answers = Responses(service, chat, engine_requests, request.scope.get("request_id", ""), body)
        return with_ignored_names(await reply(request, answers), ignored)

    add_post_route(app, service, "/v1/responses", ResponsesBody, respond)


def add_tokens(app: FastAPI, service: Service) -> None:
    """Add the routes of the tokenizer."""

    def tokens_of(body: TokenizeBody) -> Response:
        if (body.prompt is None) == (body.messages is None):
            raise AdviceError("give either a prompt or messages")
        if body.messages is not None:
            tokens = service.encode_conversation(body)
        else:
            tokens = service.encode(body.prompt or "", body.add_special_tokens is not False)
        tokens = service.truncate(body, tokens)
        token_texts = service.tokenizer.convert_ids_to_tokens(tokens) if body.return_token_strs else None
        facts = {"count": len(tokens), "max_model_len": service.max_tokens}
        response = json_response(facts | {"tokens": tokens, "token_strs": token_texts})
        return with_ignored_names(response, body.ignored_names(service.template_of(body)))

    def text_of(body: DetokenizeBody) -> Response:
        if unknown := [token for token in body.tokens if token >= service.vocabulary]:
            raise AdviceError(f"token {unknown[0]} is beyond the vocabulary, 0 to {service.vocabulary - 1}")
        return json_response({"prompt": service.tokenizer.decode(body.tokens, clean_up_tokenization_spaces=False)})

    add_post_route(app, service, "/tokenize", TokenizeBody, lambda _, body: service.in_worker(tokens_of, body))
    add_post_route(app, service, "/detokenize", DetokenizeBody, lambda _, body: service.in_worker(text_of, body))

    @app.get("/tokenizer_info")
    def tokenizer_info() -> dict[str, Any]:
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        facts = {name: getattr(service.tokenizer, name, None) for name in names}
        facts["chat_template"] = service.tokenizer.chat_template or PLAIN_TEMPLATE
        class_name = type(service.tokenizer).__name__
        return {"tokenizer_class": class_name, "max_model_len": service.max_tokens} | facts


def json_response(value: dict[str, Any]) -> Response:
    """A JSON response, encoded in Python: the C encoder would block all threads for a million tokens."""
    return Response("".join(JSONEncoder(ensure_ascii=False).iterencode(value)), media_type="application/json")


def add_state(app: FastAPI, service: Service) -> None:
    """Add the routes for the model's names, health, version, metrics and the web page."""
    card = {"object": "model", "created": int(time.time()), "owned_by": "multidraft", "root": service.names[0]}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [one_model(name) for name in service.names]}

    @app.get("/v1/models/{name:path}")
    def one_model(name: str) -> dict[str, Any]:
        check_name(service, name)
        return {"id": name} | card | {"max_model_len": service.max_tokens}

    @app.get("/health")
    async def health() -> JSONResponse:
        engine = service.engine
        status = "stopping" if not engine.alive else "recovering" if engine.failures else "ok"
        return JSONResponse({"status": status, "faults": engine.faults}, 200 if engine.alive else 503)

    @app.get("/version")
    async def show_version() -> dict[str, str]:
        return {"version": app.version}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return html_response(docs_page(app.openapi()))

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return html_response(PAGE)
