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


async def answer(_: Request, error: Exception) -> JSONResponse:
    """The response, as a handler of exceptions gives it."""
    return refusal(error)


KINDS: list[type[Exception]] = [ValidationError, AdviceError, *SAID, HTTPException, Exception]
HANDLERS: Any = dict.fromkeys(KINDS, answer)


ACCESS = logging.getLogger("multidraft.access")
NAME = re.compile(r"[\x21-\x7e]{1,200}")
OPEN = {"/", "/health", "/metrics"}  # what needs no key


class RequestId:
    """Every response carries a request's own name, the client's or one of ours, and the log has a line for it."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        name, began, status = given if NAME.fullmatch(given) else uuid.uuid4().hex, time.monotonic(), 499

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = name
            await send(message)

        try:
            await self.app(scope, receive, named)
        finally:
            client, path = (scope["client"] or ["-"])[0], scope["raw_path"].decode("latin-1")
            line = '%s "%s %s" %d in %.3f s, request %s'
            ACCESS.info(line, client, scope["method"], path, status, time.monotonic() - began, name)


class ApiKey:
    """Answers 401, before anything else is looked at, unless a request brings the key as a bearer token."""

    def __init__(self, app: ASGIApp, key: str):
        self.app, self.key = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN or self.is_right(Headers(scope=scope)):
            return await self.app(scope, receive, send)
        wrong = HTTPException(401, "the API key is missing or wrong; send it as a bearer token")
        await refusal(wrong)(scope, receive, send)

    def is_right(self, headers: Headers) -> bool:
        """Whether the key is there, in the form that RFC 6750 gives it."""
        form, _, given = headers.get("authorization", "").partition(" ")
        return form.lower() == "bearer" and secrets.compare_digest(given.strip().encode(), self.key)


class BodyLimit:
    """Answers 413 where a body has more than `most` bytes, whatever its headers say, and 408 where it comes too slowly.

    FastAPI's own limit answers in plain text, which no client of this API reads.
    """

    def __init__(self, app: ASGIApp, most: int, seconds: float | int):
        self.app, self.most, self.seconds = app, most, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left, is_whole, end = self.most, False, asyncio.get_running_loop().time() + self.seconds

        async def counted() -> Message:
            nonlocal left, is_whole
            try:
                async with asyncio.timeout_at(None if is_whole else end):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the body has not come within {self.seconds} seconds; send faster") from None
            left -= len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            if left < 0:
                raise HTTPException(413, f"the body has more than {self.most} bytes; send less")
            return message

        await self.app(scope, counted, send)
