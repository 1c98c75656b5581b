"""Layers around the app, which every request passes: its name and the log, the key, and bounds of its body."""

import asyncio
import logging
import re
import secrets
import time
import uuid

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from multidraft.server.faults import refusal

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
