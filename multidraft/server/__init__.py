"""An OpenAI-compatible server: the engine thread, the API, its numbers for Prometheus, a page to look at.

What a server may take on is said here, without torch, because the command line's help shows it.
"""

from dataclasses import dataclass

FULL = 429, "the queue is full; try again a little later"
LOADING = 503, "the model is being loaded; try again a little later"
CLOSED = 503, "the server is being stopped, or its engine has died; try again later"
BROKEN = 500, "this answer could not be computed, through a fault of the server's; its log says more"
LATE = 504, "the answer took longer than this server allows; ask for fewer tokens, or try again later"


class Refused(Exception):
    """A request that ends without an answer, through no fault of its own."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """Bounds of memory, of patience, and of what one request may ask for."""

    tokens_in_cache: int = 16384  # of all rows; where batches are padded, rows times the longest
    rows: int = 32  # decoded side by side
    context: int | None = None  # tokens of a sequence; None for as many as both models can read
    queue: int = 64  # rows that wait
    prefill: int = 256  # prompt tokens read between two steps
    drain: int = 30  # seconds for requests that are under way when the server is stopped
    request: int = 600  # seconds that a request may take, its time in the queue included
    receive: float | int = 30  # seconds in which a request's headers must have come, and then its body
    unread: float | int = 60  # seconds for which a client may leave a stream unread
    default_new_tokens: int = 1024  # of a chat that names no number
    headers: int = 1 << 16  # bytes
    body: int = 1 << 20  # bytes
    choices: int = 128  # prompts times n
    logprobs: int = 20
    stops: int = 16
