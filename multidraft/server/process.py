"""The server process: it answers `/health` while models are loaded, and comes to an orderly end.

Nothing of torch is imported here: that takes seconds, in which the server listens already.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from multidraft.errors import AdviceError
from multidraft.server import Limits
from multidraft.server.doors import LoadingError, named, refusal

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Receive, Scope, Send

Result = TypeVar("Result")
Say = Callable[[], object]  # `bool` says nothing
GRACE = 1  # seconds for the last events of streams, when the time for requests under way is over


def bound(host: str, port: int) -> socket.socket:
    """A socket at this address; connections are refused until the server listens on it."""
    if not host.strip():
        raise AdviceError("the host is empty, which would be every address of this machine; say 0.0.0.0 for that")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
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

    async def answer(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """What the app does with a request, once it is there."""
        await (self.app or refusal(LoadingError()))(scope, receive, send)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and begin to load."""
        await super().startup(sockets)
        self.loading = asyncio.create_task(self.loaded())
        self.listening()

    async def loaded(self) -> None:
        """Load, and say so; or stop, with what went wrong."""
        try:
            app = await asyncio.wrap_future(apart(self.load))
            await self.life.enter_async_context(app.router.lifespan_context(app))
            self.app = app
            self.ready()
        except Exception as error:
            self.fault, self.should_exit = error, True

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
