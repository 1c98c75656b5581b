"""Files that a call writes: checked before the work, written by one run at a time, whole or not at all."""

import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from socket import gethostname

from filelock import FileLock, Timeout

from multidraft.errors import AdviceError, optional

NOTES = logging.getLogger("multidraft")
SECONDS = 0.2  # between two looks at a place that is waited for
PICTURES = (".svg", ".png", ".pdf")
NEW = ".new-"  # begins the name of a file that is not yet whole
NOTE = ".by"  # ends the name of the note beside a lock


def check(path: Path | None, option: str, inputs: Sequence[Path | str | None] = ()) -> None:
    """Raise unless a file can be written at `path` without touching an input of the same call."""
    if path is None:
        return
    try:
        fault = fault_of(path, [Path(other).expanduser() for other in inputs if other is not None])
    except OSError as error:
        fault = f"cannot be written ({error.strerror}); choose another path"
    if fault:
        raise AdviceError(f"{option} {str(path)!r} {fault}")


def check_picture(path: Path, inputs: Sequence[Path | str | None] = ()) -> None:
    """Raise, before anything is computed, where no picture could be written to `path`."""
    optional("matplotlib", "matplotlib", "plot")
    if path.suffix not in PICTURES:
        raise AdviceError(f"a picture cannot be written to {str(path)!r}; end its name in {', '.join(PICTURES)}")
    check(path, "the picture", inputs)


def content(path: Path, what: str, most: int = 2**28) -> bytes:
    """What a file holds; raises where it cannot be read, or has more than `most` bytes, as a device may."""
    try:
        with path.open("rb") as file:
            found = file.read(most + 1)
    except OSError as error:
        raise AdviceError(f"cannot read {what} {str(path)!r} ({error.strerror}); check the path") from None
    if len(found) > most:
        raise AdviceError(f"{what} {str(path)!r} has more than {most:,} bytes; it is not what it should be")
    return found


def make_folder(path: Path, option: str) -> None:
    """Make a folder for what a call writes; raise where nothing could be written there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return
    except OSError as error:
        raise AdviceError(f"cannot write to {option} {str(path)!r} ({error.strerror}); choose another folder") from None


def fault_of(path: Path, inputs: Sequence[Path]) -> str | None:
    """What keeps a file from being written, and what to do; raises OSError where the system says no."""
    if path.is_dir():
        return "is a folder; give the name of a file, or choose another path"
    if not path.parent.is_dir():
        return f"lies in {str(path.parent)!r}, which is no folder; make it first, or choose another path"
    own, there = path.resolve(), [other for other in inputs if other.exists()]
    if path.exists() and any(path.samefile(other) or other.resolve() in own.parents for other in there):
        return "is an input of the same call; choose another path"
    if is_regular(path):
        with tempfile.TemporaryFile(dir=own.parent):
            return None
    return None if os.access(path, os.W_OK) else "cannot be written; choose another path"


def is_regular(path: Path) -> bool:
    """Whether there is a file at `path`, or nothing; a device or a pipe has no place that could be taken."""
    return path.is_file() or not path.exists()


def write(path: Path, content: bytes) -> None:
    """Write a file: beside its place first, and over it at the end, so that it is always a whole one."""
    try:
        if not is_regular(path):
            path.write_bytes(content)
            return
        place = path.resolve()
        new = place.with_name(f"{NEW}{token_hex(16)}{place.suffix}")  # of this call alone; `mkstemp` ignores the umask
        try:
            new.write_bytes(content)
            new.replace(place)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from None


def cache() -> Path:
    """Our folder in the user's cache."""
    try:
        from platformdirs import user_cache_path
    except ImportError:  # run from the sources, where nothing could be installed
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "multidraft"
    return user_cache_path("multidraft", appauthor=False)


def cannot_write(path: Path, error: OSError) -> AdviceError:
    """What to say where the system refuses."""
    return AdviceError(f"cannot write {str(path)!r} ({error.strerror}); make room, or choose another path")


def held(place: Path, wait: bool = False) -> FileLock:
    """The lock of a place, which this process has until it is released, or until nobody has this object any more.

    It is a file in the user's cache, named by the place, or lies beside the place where nothing can be written there;
    the same process may hold a place several times. Raises AdviceError where another process holds it.
    """
    path = place.expanduser().resolve()
    name = sha256(str(path).encode(errors="surrogateescape")).hexdigest()[:32]
    try:
        return noted(cache() / "locks" / name, place, wait)
    except OSError:
        beside = path.with_name(f".{path.name}.lock")  # without a note: what is left here is in the user's way
    try:
        return acquired(beside, place, wait)
    except OSError as error:
        raise cannot_write(place, error) from None


def noted(file: Path, place: Path, wait: bool) -> FileLock:
    """The lock of a place in this file, with a note beside it that says who has it."""
    lock = acquired(file, place, wait)
    command = " ".join(" ".join(["multidraft", *sys.argv[1:]]).split())[:200]
    me = f"process {os.getpid()} on {gethostname()} since {datetime.now():%F %T} (`{command}`)"
    file.with_suffix(NOTE).write_text(me, errors="backslashreplace")
    return lock


def acquired(file: Path, place: Path, wait: bool) -> FileLock:
    """The lock of a place in this file; raises OSError where none can be there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lock, note = FileLock(file, thread_local=False, is_singleton=True), file.with_suffix(NOTE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        by = (note.read_text() if note.exists() else "") or "another process"  # which has not said yet who it is
        if not wait:
            advice = "wait for it with --wait, stop it, or write elsewhere"
            raise AdviceError(f"{str(place)!r} is written by {by}; {advice}") from None
        NOTES.warning("%s is written by %s; waiting for its end", place, by)
        lock.acquire(poll_interval=SECONDS)
    return lock


@contextmanager
def hold(place: Path | None, wait: bool = False) -> Iterator[None]:
    """Hold a place for a block; None, a device or a pipe is nobody's."""
    lock = None if place is None or not (place.is_dir() or is_regular(place)) else held(place, wait)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()
