"""The layers that every request passes, and whatever goes wrong in the form in which OpenAI's API says so."""

import asyncio
import logging
import re
import secrets
import time
import uuid
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from multidraft.errors import AdviceError

LONGEST = 600  # characters of a message
TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class LoadingError(Exception):
    """The models are not there yet."""


class FullError(Exception):
    """So many rows wait that no more are taken."""


class ClosedError(Exception):
    """The engine takes nothing any more: it is being stopped, or has died."""


class LateError(Exception):
    """A request takes longer than the server has patience for."""


SAID: dict[type[Exception], tuple[int, str]] = {
    FullError: (429, "the queue is full; try again a little later"),
    ClosedError: (503, "the server is being stopped, or its engine has died; try again later"),
    LoadingError: (503, "the model is being loaded; try again a little later"),
    ClientDisconnect: (499, "the client has gone"),
    LateError: (504, "the answer took longer than this server allows; ask for fewer tokens, or try again later"),
}


def fault_of(error: Exception) -> tuple[int, str, str | None]:
    """A status, a message, and the parameter that it is about."""
    match error:
        case ValidationError():
            first = error.errors(include_url=False, include_input=False)[0]
            where, own = ".".join(map(str, first["loc"])), first.get("ctx", {}).get("error")
            said = str(own) if own else f"{where}: {first['msg']}" if where else first["msg"]
            return 400, said, where or None
        case AdviceError() if source := getattr(error, "source", None):  # a RowFault, which would bring torch
            status = 400 if source.startswith("processor") else 500
            return status, f"{source} {getattr(error, 'problem', '')}; ask for something else", None
        case AdviceError():
            return 400, str(error), None
        case HTTPException():
            return error.status_code, str(error.detail), None
    return *SAID.get(type(error), (500, "something went wrong in the server; this is a bug")), None


def as_json(error: Exception) -> dict[str, Any]:
    """The error as a client reads it."""
    status, message, parameter = fault_of(error)
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    text = " ".join(message.encode(errors="replace").decode().split())
    message = text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
    return {"error": {"message": message, "type": kind, "param": parameter, "code": status}}


def refusal(error: Exception) -> JSONResponse:
    """The response to a request that failed."""
    status = fault_of(error)[0]
    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    if isinstance(error, HTTPException) and error.headers:
        headers |= dict(error.headers)
    return JSONResponse(as_json(error), status, headers)


async def handle(_: Request, error: Exception) -> JSONResponse:
    """The response, as a handler of exceptions gives it."""
    return refusal(error)


HANDLERS: Any = dict.fromkeys([ValidationError, AdviceError, *SAID, HTTPException, Exception], handle)
ACCESS = logging.getLogger("multidraft.access")
NAME = re.compile(r"[\x21-\x7e]{1,200}")
OPEN = {"/", "/health", "/metrics"}  # what needs no key


def named(app: ASGIApp) -> ASGIApp:
    """Every response carries a request's own name, the client's or one of ours, and the log has a line for it."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        name, began, status = given if NAME.fullmatch(given) else uuid.uuid4().hex, time.monotonic(), 499

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = name
            await send(message)

        try:
            await app(scope, receive, sent)
        finally:
            client, path = (scope["client"] or ["-"])[0], scope["raw_path"].decode("latin-1")
            line = '%s "%s %s" %d in %.3f s, request %s'
            ACCESS.info(line, client, scope["method"], path, status, time.monotonic() - began, name)

    return answer


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
    """A body, unless it has more than `most` bytes, whatever its headers say, or comes too slowly."""
    content = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                content += part
                if len(content) > most:
                    raise HTTPException(413, f"the body has more than {most} bytes; send less")
    except TimeoutError:
        raise HTTPException(408, f"the body has not come within {seconds} seconds; send faster") from None
    return bytes(content)
