"""No body is read beyond a number of bytes, whatever its headers say of it."""

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Limited:
    """A layer around an app that answers 413 where a body has more than `most` bytes.

    FastAPI's own limit answers in plain text, which no client of this API reads.
    """

    def __init__(self, app: ASGIApp, most: int):
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = self.most

        async def counted() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"the body has more than {self.most} bytes; send less")
            return message

        await self.app(scope, counted, send)
