"""Answers on their way to the client: whole, or step by step as server-sent events; the client may vanish."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from multidraft.server.faults import as_json
from multidraft.server.formats import Format

LOG = logging.getLogger(__name__)
AS_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Stream(StreamingResponse):
    """Events as they come; however it ends, the engine does not go on for nobody.

    A client that leaves them unread for too long is one, too: what it does not take would be kept for it.
    """

    def __init__(self, form: Format):
        super().__init__(events(form), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self.answering = form.answering

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            await asyncio.wait_for(send(message), self.answering.service.limits.unread)

        try:
            await super().__call__(scope, receive, sent)
        except TimeoutError:
            LOG.info("a client has left its stream unread")
        except asyncio.CancelledError:
            if not self.answering.service.engine.closing:
                raise
            LOG.info("a client has not read its stream to the end before the server was stopped")
        finally:
            self.answering.cancel()


async def events(form: Format) -> AsyncIterator[str]:
    """One event a step, then the numbers where they are asked for, and the end; an error is an event, too."""
    try:
        async for delta in form.answering.deltas():
            yield event(form.chunk(delta))
        if form.answering.body.streams("include_usage"):
            yield event(form.last())
    except Exception as error:
        yield event(as_json(error))
    yield "data: [DONE]\n\n"


def event(value: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {AS_JSON(value)}\n\n"


async def reply(request: Request, form: Format) -> Response:
    """The response, as it was asked for."""
    if form.answering.body.stream:
        return Stream(form)
    work, gone = asyncio.ensure_future(collected(form)), asyncio.ensure_future(vanished(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(await work) if work.done() else Response(status_code=499)  # which nobody reads
    finally:
        form.answering.cancel()
        for task in (work, gone):
            task.cancel()


async def collected(form: Format) -> dict[str, Any]:
    """All of the answers."""
    return form.whole([delta async for delta in form.answering.deltas()])


async def vanished(request: Request) -> None:
    """Wait until the client has gone; its request has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
