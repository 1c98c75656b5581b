"""Ctrl-C and a polite kill: KeyboardInterrupt while we compute, an end at once while modules are loaded."""

import os
import signal
from types import FrameType

LOADING = "<frozen importlib._bootstrap>"
STOPPED = 130  # the exit code of an interrupted command, as a shell gives it


def listen() -> None:
    """Let both signals be heard by `stop`."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def stop(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; while a module is loaded, which might swallow it, end at once with one line."""
    while frame is not None:
        if frame.f_code.co_filename == LOADING:
            os.write(2, b"multidraft: stopped\n")
            os._exit(STOPPED)
        frame = frame.f_back
    raise KeyboardInterrupt


def ignore() -> None:
    """Hear nothing any more: all is done, and nothing is left to be stopped."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
