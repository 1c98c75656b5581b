"""One run at a time in each place: a second one learns who holds it, or waits."""

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from socket import gethostname
from weakref import finalize

from filelock import FileLock, Timeout

from multidraft.errors import AdviceError
from multidraft.io.files import cache, cannot_write, is_regular

NOTES = logging.getLogger("multidraft")
SECONDS = 0.2  # between two looks at a place that is waited for


class Held:
    """A place that this process holds until `close`, or until nobody has this object any more.

    The lock is a file in the user's cache, named by the place; the same process may hold a place several times.
    Raises AdviceError where another process holds it.
    """

    def __init__(self, place: Path, wait: bool = False):
        path = place.expanduser().resolve()
        folder, name = cache() / "locks", sha256(str(path).encode(errors="surrogateescape")).hexdigest()[:32]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.lock, self.note = FileLock(folder / name, thread_local=False, is_singleton=True), folder / f"{name}.by"
            self.acquire(place, wait)
            self.close = finalize(self, self.lock.release)
            self.note.write_text(json.dumps(myself()))
        except OSError as error:
            raise cannot_write(folder, error) from None

    def acquire(self, place: Path, wait: bool) -> None:
        """Take the lock."""
        try:
            self.lock.acquire(timeout=0)
        except Timeout:
            by = holder(self.note)
            if not wait:
                raise AdviceError(
                    f"{str(place)!r} is written by {by}; wait for it with --wait, stop it, or write elsewhere"
                ) from None
            NOTES.warning("%s is written by %s; waiting for its end", place, by)
            self.lock.acquire(poll_interval=SECONDS)


def myself() -> dict[str, object]:
    """Who holds a place."""
    command = " ".join(["multidraft", *sys.argv[1:]])[:200]
    return {"process": os.getpid(), "host": gethostname(), "since": f"{datetime.now():%F %T}", "command": command}


def holder(note: Path) -> str:
    """Who holds a place, in words."""
    try:
        told = json.loads(note.read_text())
        return f"process {told['process']} on {told['host']} since {told['since']} (`{told['command']}`)"
    except (OSError, ValueError, KeyError, TypeError):  # between taking the lock and saying so
        return "another process"


@contextmanager
def hold(place: Path | None, wait: bool = False) -> Iterator[None]:
    """Hold a place for a block; None, a device or a pipe is nobody's."""
    held = None if place is None or not (place.is_dir() or is_regular(place)) else Held(place, wait)
    try:
        yield
    finally:
        if held is not None:
            held.close()
