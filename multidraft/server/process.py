"""The server process: sockets, connections, the access log, and errors in the form of OpenAI's API.

The process listens before models are loaded. torch is not imported here, because that takes seconds in which the
server should already answer `/health`.
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
from multidraft.machine import exit_interrupted
from multidraft.server import LOADING_ERROR, Limits, Refused
from multidraft.server.page import PAGE, html_response

if TYPE_CHECKING:
    from fastapi import FastAPI

Result = TypeVar("Result")
Callback = Callable[[], object]  # `bool` serves as one that does nothing
GRACE_SECONDS = 1  # after the drain time, for the last events of streams
MAX_MESSAGE_CHARACTERS = 600
ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
TWO_LENGTHS = "the request has Content-Length and Transfer-Encoding; send one of them"
LOG = logging.getLogger(__name__)
ACCESS_LOG = logging.getLogger("multidraft.access")
REQUEST_ID = re.compile(r"[\x21-\x7e]{1,200}")


def describe_error(error: Exception) -> tuple[int, str, str | None]:
    """An error's status and message, and the parameter that it is about."""
    match error:
        case ValidationError():
            first = error.errors(include_url=False, include_input=False)[0]
            location, cause = ".".join(map(str, first["loc"])), first.get("ctx", {}).get("error")
            message = str(cause) if cause else f"{location}: {first['msg']}" if location else first["msg"]
            message += "; see /v1/models" if (location, first["type"]) == ("model", "missing") else ""
            return 400, message, location or None
        case AdviceError() if source := getattr(error, "source", None):  # a RowFault, whose import would load torch
            status = 400 if source.startswith("processor") else 500
            return status, f"{source} {getattr(error, 'problem', '')}; ask for something else", None
        case AdviceError():
            return 400, str(error), None
        case HTTPException():
            return error.status_code, str(error.detail), None
        case Refused():
            return error.status, str(error), None
        case ClientDisconnect():
            return 499, "the client has disconnected", None
    return 500, "something went wrong in the server; this is a bug", None


def error_as_json(error: Exception, request_id: str = "") -> dict[str, Any]:
    """The error's JSON for the client; a server error includes the request's ID, to find it in the log."""
    status, message, parameter = describe_error(error)
    message += f" (request {request_id})" if status == 500 and request_id else ""
    kind = ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    text = " ".join(message.encode(errors="replace").decode().split())
    message = text if len(text) <= MAX_MESSAGE_CHARACTERS else text[: MAX_MESSAGE_CHARACTERS - 3] + "..."
    return {"error": {"message": message, "type": kind, "param": parameter, "code": status}}


def error_response(error: Exception, request_id: str = "") -> JSONResponse:
    """The response to a request that failed."""
    status = describe_error(error)[0]
    headers = dict(getattr(error, "headers", None) or {})  # such as `allow` of a 405
    headers |= {"Retry-After": "1"} if status in (429, 503) else {}
    return JSONResponse(error_as_json(error, request_id), status, headers)


def with_request_id(app: ASGIApp) -> ASGIApp:
    """Give every response an x-request-id, the client's or a new one, and write a line of the access log."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)
        client_id = Headers(scope=scope).get("x-request-id", "")
        request_id = client_id if REQUEST_ID.fullmatch(client_id) else uuid.uuid4().hex
        scope["request_id"], start_time, status = request_id, time.monotonic(), 499

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await app(scope, receive, send_with_id)
        finally:
            client, path = (scope["client"] or ["-"])[0], scope["raw_path"].decode("latin-1")
            line = '%s "%s %s" %d in %.3f s, request %s'
            ACCESS_LOG.info(line, client, scope["method"], path, status, time.monotonic() - start_time, request_id)

    return answer


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket bound to this address; connections are refused until the server listens on it."""
    if not host.strip():
        raise AdviceError("the host is empty; give an address, or 0.0.0.0 for all addresses of this machine")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, UnicodeError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise AdviceError(f"cannot listen on {host} port {port} ({reason}); give another --host or --port") from None
    return listener


def in_thread(call: Callable[[], Result]) -> "Future[Result]":
    """Run a call in a new daemon thread, which does not keep the process alive; the future has its result."""
    future: Future[Result] = Future()

    def compute() -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=compute, daemon=True).start()
    return future


class Connection(H11Protocol):
    """A connection that is closed if a request's headers do not arrive in time."""

    header_timeout: float | int = 30  # seconds
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:  # an asyncio.Transport, or uvloop's equivalent
        super().connection_made(transport)
        self.wait_for_headers()

    def data_received(self, data: bytes) -> None:
        self.wait_for_headers()
        super().data_received(data)
        if self.timer is not None and self.cycle is not None and not self.cycle.response_complete:
            self.timer.cancel()
            self.timer = None

    def wait_for_headers(self) -> None:
        """Start the timer, unless it runs already or a request is being answered."""
        if self.timer is None and (self.cycle is None or self.cycle.response_complete):
            self.timer = self.loop.call_later(self.header_timeout, self.transport.close)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self.timer is not None:
            self.timer.cancel()


class Server(uvicorn.Server):
    """Listens first, then loads its app; when stopped, it ends every answer.

    `listening` is called when loading starts, `ready` when the app is loaded.
    """

    def __init__(
        self, limits: Limits, load: "Callable[[], FastAPI]", listening: Callback = bool, ready: Callback = bool
    ):
        self.limits, self.load, self.listening, self.ready = limits, load, listening, ready
        self.app: FastAPI | None = None
        self.loading: asyncio.Task | None = None
        self.fault: BaseException | None = None
        self.exit_stack = AsyncExitStack()
        config = uvicorn.Config(
            with_request_id(self.answer),  # which Ray Serve does by itself
            http=type("TimedConnection", (Connection,), {"header_timeout": limits.receive}),
            ws="none",
            lifespan="off",
            log_level="warning",
            h11_max_incomplete_event_size=limits.headers,
            timeout_graceful_shutdown=limits.drain + GRACE_SECONDS,
        )
        super().__init__(config)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request by the app; while it is loading with 503, or with the page, which waits for the app."""
        headers = Headers(scope=scope)
        if "transfer-encoding" in headers and "content-length" in headers:  # which ends the body is a matter of taste
            return await error_response(HTTPException(400, TWO_LENGTHS, {"Connection": "close"}))(scope, receive, send)
        is_page = scope["type"] == "http" and scope["path"] == "/" and scope["method"] == "GET"
        response = self.app or (html_response(PAGE) if is_page else error_response(Refused(*LOADING_ERROR)))
        await response(scope, receive, send)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.loading = asyncio.create_task(self.load_app())
        self.listening()

    async def load_app(self) -> None:
        """Load the app and call `ready`; on an error keep it as `fault` and stop."""
        try:
            app = await asyncio.wrap_future(in_thread(self.load))
            engine, loop = app.state.service.engine, asyncio.get_running_loop()
            engine.on_death = lambda: loop.call_soon_threadsafe(self.give_up, engine.fault)
            await self.exit_stack.enter_async_context(app.router.lifespan_context(app))
            self.app = app
            self.ready()
        except Exception as error:
            self.fault, self.should_exit = error, True

    def give_up(self, fault: BaseException) -> None:
        """Stop the process because its engine has died; a supervisor restarts it."""
        cause = f"{type(fault).__name__}: {fault}"
        self.fault = BrokenProgram(f"the engine has died ({cause}); the log says more, start the server anew")
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no new requests; running ones get the drain time, then end with an error."""
        if self.app is not None:
            service = self.app.state.service
            service.engine.closing = True
            if running := len(service.engine.batch.requests):
                LOG.warning("stopping: %d running requests get up to %g s to end", running, self.limits.drain)
            asyncio.get_running_loop().call_later(self.limits.drain, service.end_answers)
        await super().shutdown(sockets)
        await self.exit_stack.aclose()


def run(
    limits: Limits, listener: socket.socket, load: "Callable[[], FastAPI]", listening: Callback, ready: Callback
) -> None:
    """Serve until stopped; `load` builds the app in another thread."""
    server = Server(limits, load, listening, ready)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        if server.app is None and server.fault is None:  # loading models cannot be interrupted
            os.write(2, b"multidraft: stopped\n")
            os._exit(exit_interrupted())
        raise
    if server.fault is not None:
        raise server.fault
