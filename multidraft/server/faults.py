"""Whatever goes wrong, in the form in which OpenAI's API says so."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

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


def add_to(app: FastAPI) -> None:
    """Let the app answer so."""
    kinds: list[type[Exception]] = [ValidationError, AdviceError, *SAID, HTTPException, Exception]
    for kind in kinds:
        app.add_exception_handler(kind, answer)
