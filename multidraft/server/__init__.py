"""An OpenAI-compatible server: the engine thread, the API, Prometheus metrics, a web page to chat on.

The limits are defined here, without torch, because the command line's help shows them.
"""

from dataclasses import dataclass

# The status and the message of each `Refused`.
FULL_ERROR = 429, "the queue is full; try again a little later"
LOADING_ERROR = 503, "the model is being loaded; try again a little later"
CLOSED_ERROR = 503, "the server is being stopped, or its engine has died; try again later"
BROKEN_ERROR = 500, "the server failed to compute this answer; its log says more, try again"
TIMEOUT_ERROR = 504, "the answer took longer than this server allows; ask for fewer tokens, or try again later"


class Refused(Exception):
    """A valid request that the server cannot answer now."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """Limits of memory, of time, and of what one request may ask for."""

    tokens_in_cache: int = 16384  # of all rows; in a padded batch, rows times the longest row
    rows: int = 32  # decoded in one batch
    context: int | None = None  # tokens of a sequence; None for the models' own limit
    queue: int = 64  # rows that wait
    remember: int = 0  # tokens of each API key's earlier prompts and answers, which look-ups may copy from
    prefill: int = 256  # prompt tokens read between two steps
    drain: int = 30  # seconds that running requests get when the server is stopped
    request: int = 600  # seconds that a request may take, including its time in the queue
    receive: float | int = 30  # seconds in which a request's headers must arrive, and then its body
    unread: float | int = 60  # seconds for which a client may leave a stream unread
    default_new_tokens: int = 1024  # of a chat without max_tokens
    headers: int = 1 << 16  # bytes
    body: int = 1 << 20  # bytes
    choices: int = 128  # prompts times n
    logprobs: int = 20
    stops: int = 16
