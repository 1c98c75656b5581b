"""The Ray cluster that a command works on: the one at RAY_ADDRESS, or one of its own on this machine."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from multidraft.errors import AdviceError
from multidraft.errors.missing import optional


@contextmanager
def joined() -> Iterator[None]:
    """Join the cluster for a while; one that was made for it ends with it."""
    ray = optional("ray", "Ray", "ray")
    polite = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(logging_level="ERROR", ignore_reinit_error=True)
    except (ConnectionError, ValueError, RuntimeError) as error:
        where, reason = os.environ.get("RAY_ADDRESS", "this machine"), str(error).strip().splitlines()[0]
        raise AdviceError(f"cannot join Ray at {where} ({reason}); check RAY_ADDRESS, or unset it") from None
    signal.signal(signal.SIGTERM, polite)  # which Ray has taken
    try:
        yield
    finally:
        ray.shutdown()
