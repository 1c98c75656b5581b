"""Whatever goes wrong, in the form in which OpenAI's API says so."""

from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from multidraft.errors import AdviceError
from multidraft.server.answering import LateError
from multidraft.server.engine import ClosedError, FullError

LONGEST = 600  # characters of a message
TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def fault_of(error: BaseException) -> tuple[int, str, str | None]:
    """A status, a message, and the parameter that it is about."""
    match error:
        case RequestValidationError():
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
            return 400, f"{where}: {first['msg']}" if where else str(first["msg"]), where or None
        case AdviceError():
            return 400, str(error), None
        case FullError():
            return 429, "the queue is full; try again a little later", None
        case ClosedError():
            return 503, "the server is being stopped, or its engine has died; try again later", None
        case LateError():
            return 504, "the answer took longer than this server allows; ask for fewer tokens, or try again later", None
        case StarletteHTTPException():
            return error.status_code, str(error.detail), None
    return 500, "something went wrong in the server; this is a bug", None


def as_json(error: BaseException) -> dict[str, Any]:
    """The error as a client reads it."""
    status, message, parameter = fault_of(error)
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    text = " ".join(message.encode(errors="replace").decode().split())
    message = text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
    return {"error": {"message": message, "type": kind, "param": parameter, "code": status}}


async def answer(_: Request, error: Exception) -> JSONResponse:
    """The response to a request that failed."""
    status = fault_of(error)[0]
    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    if isinstance(error, HTTPException) and error.headers:
        headers |= dict(error.headers)
    return JSONResponse(as_json(error), status, headers)


def add_to(app: FastAPI) -> None:
    """Let the app answer so."""
    for kind in (
        RequestValidationError,
        AdviceError,
        FullError,
        ClosedError,
        LateError,
        StarletteHTTPException,
        Exception,
    ):
        app.add_exception_handler(kind, answer)
