"""A client of an OpenAI-compatible server, whose failures are one line each."""

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any
from weakref import finalize

import httpx2

from multidraft_judge import fields
from multidraft_judge.asking.answers import completion_of
from multidraft_judge.asking.dialects import ANSWER, GO_ON_FIELDS, dialect_of, only_name
from multidraft_judge.defaults import NUM_LOGPROBS, TIMEOUT_SECONDS
from multidraft_judge.errors import AdviceError, check_text
from multidraft_judge.evidence import forms
from multidraft_judge.evidence.laws import Settings
from multidraft_judge.evidence.observation import Ask, Completion

MAX_TRIES = 6  # of a request that is answered with 429 or 503
MAX_WAIT_SECONDS = 30.0  # between two tries
MAX_MESSAGE_CHARACTERS = 200  # of a server's error
MAX_ANSWER_BYTES = 2**26
BUSY_STATUSES, KEY_STATUSES = (429, 503), (401, 403)
KEY_ADVICE = "pass its key as --api-key, or in MULTIDRAFT_API_KEY (from Python: api_key=)"
MISFIT_ADVICE = "judge a server whose answers are as OpenAI's"
KEY, KEY_FAULT = r"[!-~]+", "is empty, or has a space or another character that no key has"
COMPLETIONS = "/v1/completions"
EXAMPLE = "give one such as http://127.0.0.1:8000"


class Client:
    """A server's model, the only one that it lists unless a name is given; `transport` is the network in tests."""

    def __init__(
        self,
        url: str,
        model: str | None = None,
        num_logprobs: int = NUM_LOGPROBS,
        timeout: float = TIMEOUT_SECONDS,
        api_key: str | None = None,
        transport: Any = None,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.url = url.rstrip("/").removesuffix("/v1")
        self.num_logprobs, self.timeout, self.sleep = num_logprobs, timeout, sleep
        if not url.startswith(("http://", "https://")):
            raise AdviceError(f"{url!r} is no address of a server; {EXAMPLE}")
        if api_key is not None and not re.fullmatch(KEY, api_key):
            raise AdviceError(f"--api-key (from Python: api_key) {KEY_FAULT}; pass it as the server shows it")
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        with self.one_line_errors():
            self.http = httpx2.Client(
                base_url=self.url,
                timeout=timeout,
                headers=headers,
                transport=transport,
                limits=httpx2.Limits(max_connections=None),
            )
            finalize(self, self.http.close)  # when this object is collected
            models = self.get("/v1/models")
        self.dialect, self.model = dialect_of(models), only_name(models, self.url) if model is None else model
        check_text(self.model, "the model's name")

    @contextmanager
    def one_line_errors(self) -> Iterator[None]:
        """Turn errors of the connection into one line each."""
        try:
            yield
        except httpx2.TimeoutException:
            seconds = f"{self.timeout:g} s"
            raise AdviceError(f"{self.url} has not answered within {seconds}; give a larger --timeout") from None
        except AdviceError:
            raise
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, ValueError) as error:
            raise AdviceError(f"{self.url!r} is no address of a server ({error}); {EXAMPLE}") from None
        except httpx2.RequestError as error:
            what = " ".join(str(error).split()) or type(error).__name__
            raise AdviceError(f"{self.url} does not answer ({what}); start the server, or check the address") from None

    @contextmanager
    def response(self, method: str, path: str, body: Any = None) -> Iterator[Any]:
        """The response to a request, not yet read; waits and tries again while the server has too much to do."""
        for attempt in range(MAX_TRIES):
            with self.one_line_errors(), self.http.stream(method, path, json=body) as response:
                if response.status_code == 200:
                    yield response
                    return
                content = b"".join(self.chunks(response)) if response.status_code != 200 else b""
            if response.status_code not in BUSY_STATUSES:
                raise self.refusal(path, response.status_code, content)
            self.sleep(retry_seconds(response.headers.get("retry-after"), attempt))
        raise AdviceError(f"{self.url} has answered {MAX_TRIES} times that it is too busy; try again later")

    def refusal(self, path: str, status: int, content: bytes) -> AdviceError:
        """The error for a response that is no success."""
        text = content.decode(errors="replace")
        with suppress(ValueError, RecursionError):
            text = json.loads(text)
        advice = KEY_ADVICE if status in KEY_STATUSES else "change what is asked"
        return AdviceError(f"{self.url} answers {path} with {status}: {error_text(text)}; {advice}")

    def chunks(self, response: Any) -> Iterator[bytes]:
        """The bytes of a response, as they come; raises where they are more than any answer has."""
        size = 0
        for chunk in response.iter_bytes():
            size += len(chunk)
            if size > MAX_ANSWER_BYTES:
                raise AdviceError(
                    f"{self.url} answers with more than {MAX_ANSWER_BYTES >> 20} MB; judge another server"
                )
            yield chunk

    def lines(self, response: Any) -> Iterator[str]:
        """The lines of a response, as they come."""
        pieces = list[bytes]()
        for chunk in self.chunks(response):
            first, *others = chunk.split(b"\n")
            pieces.append(first)
            for line in others:
                yield b"".join(pieces).decode(errors="replace")
                pieces = [line]
        yield b"".join(pieces).decode(errors="replace")

    def get(self, path: str) -> Any:
        """The JSON at a path."""
        with self.response("GET", path) as response:
            return self.parsed(b"".join(self.chunks(response)))

    def post(self, body: dict[str, Any]) -> Any:
        """The checked answer to a completion's body."""
        with self.response("POST", COMPLETIONS, body) as response:
            return self.answer(b"".join(self.chunks(response)))

    def events(self, body: dict[str, Any]) -> Iterator[Any]:
        """The events of a streamed completion."""
        with self.response("POST", COMPLETIONS, body | {"stream": True}) as response:
            for line in self.lines(response):
                data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
                if data == "[DONE]":
                    return
                if data:
                    yield self.answer(data)

    def answer(self, text: str | bytes) -> Any:
        """A completion, or a part of one, whose fields are what they should be."""
        return fields.read(
            ANSWER, self.parsed(text), f"{self.url} gives an answer that cannot be judged", MISFIT_ADVICE
        )

    def parsed(self, text: str | bytes) -> Any:
        """A JSON object of the server."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise AdviceError(f"{self.url} answers without a JSON object; check that it has the OpenAI API")
        if value.get("error"):
            raise AdviceError(f"{self.url} has failed: {error_text(value)}; see its log")
        return value

    def complete(self, ask: Ask, settings: Settings) -> Completion:
        """Ask for a completion with log-probabilities; the connection of a cancelled one is closed early."""
        body = {"model": self.model, "prompt": ask.prompt, "max_tokens": ask.max_tokens, "logprobs": self.num_logprobs}
        body |= self.dialect.fields | sampling_fields(settings, ask.temperature)
        body |= {} if ask.seed is None else {"seed": ask.seed}
        if ask.formed:  # such a text ends where its form does
            body = {name: value for name, value in body.items() if name not in GO_ON_FIELDS} | forms.FIELDS
        if not ask.streamed:
            return completion_of(ask, [self.post(body)], self.num_logprobs, self.url)
        parts = list[Any]()
        with closing(self.events(body | {"stream_options": {"include_usage": True}})) as events:  # type: ignore[type-var]
            for event in events:
                parts.append(event)
                if ask.cancel_after is not None and len(parts) >= ask.cancel_after:
                    break
        return completion_of(ask, parts, self.num_logprobs, self.url)


def sampling_fields(settings: Settings, temperature: float) -> dict[str, Any]:
    """The fields of a body that say how to sample; at temperature 0 nothing is cut."""
    cuts = {"top_p": settings.top_p if settings.top_p < 1 else None, "top_k": settings.top_k or None}
    kept = {name: value for name, value in cuts.items() if temperature > 0 and value is not None}
    return {"temperature": temperature} | kept | settings.penalties


def error_text(content: Any) -> str:
    """The message in a server's error, on one line."""
    error = content.get("error", content) if isinstance(content, dict) else content
    text = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(text).split())[:MAX_MESSAGE_CHARACTERS]


def retry_seconds(header: str | None, attempt: int) -> float:
    """How long to wait: as long as the server says, or twice as long each time."""
    try:
        seconds = float(header or "")
    except ValueError:
        seconds = math.nan
    return min(max(seconds, 0.0) if math.isfinite(seconds) else 2.0**attempt, MAX_WAIT_SECONDS)
