"""What is between sockets and the app: the process, which listens before models are loaded and comes to an orderly end;
connections; the log of requests; and whatever goes wrong in the form in which OpenAI's API says so.

Nothing of torch is imported here: that takes seconds, in which the server answers `/health` already.
"""

import asyncio
import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from multidraft.errors import AdviceError, BrokenProgram
from multidraft.server import LOADING, Limits, Refused

if TYPE_CHECKING:
    from fastapi import FastAPI

Result = TypeVar("Result")
Say = Callable[[], object]  # `bool` says nothing
GRACE = 1  # seconds for the last events of streams, when the time for requests under way is over
LONGEST = 600  # characters of a message
TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
ACCESS = logging.getLogger("multidraft.access")
NAME = re.compile(r"[\x21-\x7e]{1,200}")


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
        case Refused():
            return error.status, str(error), None
        case ClientDisconnect():
            return 499, "the client has gone", None
    return 500, "something went wrong in the server; this is a bug", None


def as_json(error: Exception, request_id: str = "") -> dict[str, Any]:
    """The error as a client reads it; where it is ours, with the name by which the request is found in the log."""
    status, message, parameter = fault_of(error)
    message += f" (request {request_id})" if status == 500 and request_id else ""
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    text = " ".join(message.encode(errors="replace").decode().split())
    message = text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
    return {"error": {"message": message, "type": kind, "param": parameter, "code": status}}


def refusal(error: Exception, request_id: str = "") -> JSONResponse:
    """The response to a request that failed."""
    status = fault_of(error)[0]
    headers = dict(getattr(error, "headers", None) or {})  # which address takes what, say
    headers |= {"Retry-After": "1"} if status in (429, 503) else {}
    return JSONResponse(as_json(error, request_id), status, headers)


def named(app: ASGIApp) -> ASGIApp:
    """Every response carries a request's own name, the client's or one of ours, and the log has a line for it."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        name, began, status = given if NAME.fullmatch(given) else uuid.uuid4().hex, time.monotonic(), 499
        scope["request_id"] = name

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


def bound(host: str, port: int) -> socket.socket:
    """A socket at this address; connections are refused until the server listens on it."""
    if not host.strip():
        raise AdviceError("the host is empty, which would be every address of this machine; say 0.0.0.0 for that")
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except (OSError, UnicodeError) as error:
        made.close()
        reason = getattr(error, "strerror", None) or error
        raise AdviceError(f"cannot listen on {host} port {port} ({reason}); give another --host or --port") from None
    return made


def apart(call: Callable[[], Result]) -> "Future[Result]":
    """What a call returns or raises, in a thread of its own, which an interruption does not wait for."""
    found: Future[Result] = Future()

    def settle() -> None:
        found.set_running_or_notify_cancel()
        try:
            found.set_result(call())
        except BaseException as error:
            found.set_exception(error)

    Thread(target=settle, daemon=True).start()
    return found


class Connection(H11Protocol):
    """A connection that is closed where the headers of a request do not come in time."""

    patience: float | int = 30  # seconds
    due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:  # an asyncio.Transport, or what uvloop has in its place
        super().connection_made(transport)
        self.wait_for_headers()

    def data_received(self, data: bytes) -> None:
        self.wait_for_headers()
        super().data_received(data)
        if self.due is not None and self.cycle is not None and not self.cycle.response_complete:
            self.due.cancel()
            self.due = None

    def wait_for_headers(self) -> None:
        """Begin to wait, unless a request is under way or waited for already."""
        if self.due is None and (self.cycle is None or self.cycle.response_complete):
            self.due = self.loop.call_later(self.patience, self.transport.close)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self.due is not None:
            self.due.cancel()


class Server(uvicorn.Server):
    """Loads its app when it listens already, and ends every answer when it is stopped.

    `listening` is called when it begins to load, and `ready` when the app is there.
    """

    def __init__(self, limits: Limits, load: "Callable[[], FastAPI]", listening: Say = bool, ready: Say = bool):
        self.limits, self.load, self.listening, self.ready = limits, load, listening, ready
        self.app: FastAPI | None = None
        self.loading: asyncio.Task | None = None
        self.fault: BaseException | None = None
        self.life = AsyncExitStack()
        config = uvicorn.Config(
            named(self.answer),  # which Ray Serve does by itself
            http=type("Patient", (Connection,), {"patience": limits.receive}),
            ws="none",
            lifespan="off",
            log_level="warning",
            h11_max_incomplete_event_size=limits.headers,
            timeout_graceful_shutdown=limits.drain + GRACE,
        )
        super().__init__(config)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What the app does with a request, once it is there."""
        await (self.app or refusal(Refused(*LOADING)))(scope, receive, send)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.loading = asyncio.create_task(self.loaded())
        self.listening()

    async def loaded(self) -> None:
        """Load, and say so; or stop, with what went wrong."""
        try:
            app = await asyncio.wrap_future(apart(self.load))
            engine, loop = app.state.service.engine, asyncio.get_running_loop()
            engine.on_death = lambda: loop.call_soon_threadsafe(self.give_up, engine.fault)
            await self.life.enter_async_context(app.router.lifespan_context(app))
            self.app = app
            self.ready()
        except Exception as error:
            self.fault, self.should_exit = error, True

    def give_up(self, fault: BaseException) -> None:
        """End the process, whose engine has died: a supervisor starts it anew."""
        what = f"{type(fault).__name__}: {fault}"
        self.fault = BrokenProgram(f"the engine has died ({what}); the log says more, start the server anew")
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nothing new; what is under way has its time, and then ends with an error that says so."""
        if self.app is not None:
            service = self.app.state.service
            service.engine.closing = True
            asyncio.get_running_loop().call_later(self.limits.drain, service.end)
        await super().shutdown(sockets)
        await self.life.aclose()


def run(limits: Limits, listener: socket.socket, load: "Callable[[], FastAPI]", listening: Say, ready: Say) -> None:
    """Serve until stopped; `load` makes the app, in another thread."""
    server = Server(limits, load, listening, ready)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        if server.app is None and server.fault is None:  # models are being loaded: that cannot be interrupted
            os.write(2, b"multidraft: stopped\n")
            os._exit(130)
        raise
    if server.fault is not None:
        raise server.fault
