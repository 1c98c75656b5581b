"""The server process: a port that is ours before anything is loaded, requests, and an orderly end."""

import asyncio
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from multidraft.errors import AdviceError
from multidraft.server.app import build
from multidraft.server.named import Named
from multidraft.server.service import Service


def bound(host: str, port: int) -> socket.socket:
    """A socket at this address; connections are refused until the server listens on it."""
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


class Server(uvicorn.Server):
    """Says when it listens, and refuses new work as soon as it is told to stop."""

    def __init__(self, service: Service, ready: Callable[[], None] = lambda: None):
        app = Named(build(service))  # which Ray Serve does by itself
        patience = service.limits.drain
        super().__init__(uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=patience))
        self.service, self.ready = service, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the engine, and listen."""
        await super().startup(sockets)
        if self.started:
            self.ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """What a signal does."""
        self.service.engine.closing = True
        super().handle_exit(sig, frame)


def run(service: Service, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until stopped; `ready` is called when requests are taken."""
    asyncio.run(Server(service, ready).serve(sockets=[listener]))
