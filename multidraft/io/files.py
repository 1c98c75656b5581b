"""Files that a call writes: checked before the work, locked for one run at a time, written completely or not at all."""

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
POLL_SECONDS = 0.2  # between two tries to take a lock
PICTURE_SUFFIXES = (".svg", ".png", ".pdf")
NEW_PREFIX = ".new-"  # of the name of a file that is being written
NOTE_SUFFIX = ".by"  # of the note beside a lock that names its owner


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
    """Raise if no picture can be written to `path`; called before anything is computed."""
    optional("matplotlib", "matplotlib", "plot")
    if path.suffix not in PICTURE_SUFFIXES:
        suffixes = ", ".join(PICTURE_SUFFIXES)
        raise AdviceError(f"a picture cannot be written to {str(path)!r}; end its name in {suffixes}")
    check(path, "the picture", inputs)


def check_folder(name: str) -> None:
    """Raise where the name of a model is a path, not a hub name, and no folder is there."""
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or ":" in name
    if is_path and not Path(name).expanduser().is_dir():
        raise AdviceError(f"there is no folder {name!r}; check the path, or give a hub name, as owner/model:Q8_0")


def content(path: Path, what: str, max_bytes: int = 2**28) -> bytes:
    """The content of a file; raises if it cannot be read or has more than `max_bytes`, as a device may."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise AdviceError(f"cannot read {what} {str(path)!r} ({error.strerror}); check the path") from None
    if len(data) > max_bytes:
        raise AdviceError(f"{what} {str(path)!r} has more than {max_bytes:,} bytes; it is not what it should be")
    return data


def make_folder(path: Path, option: str) -> None:
    """Make a folder for a call's output; raise if nothing can be written there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return
    except OSError as error:
        raise AdviceError(f"cannot write to {option} {str(path)!r} ({error.strerror}); choose another folder") from None


def fault_of(path: Path, inputs: Sequence[Path]) -> str | None:
    """Why a file cannot be written and what to do, or None; raises OSError if the system refuses."""
    if path.is_dir():
        return "is a folder; give the name of a file, or choose another path"
    if not path.parent.is_dir():
        return f"lies in {str(path.parent)!r}, which is no folder; make it first, or choose another path"
    place, sources = path.resolve(), [source for source in inputs if source.exists()]
    if path.exists() and any(path.samefile(source) or source.resolve() in place.parents for source in sources):
        return "is an input of the same call; choose another path"
    if is_regular(path):
        with tempfile.TemporaryFile(dir=place.parent):
            return None
    return None if os.access(path, os.W_OK) else "cannot be written; choose another path"


def is_regular(path: Path) -> bool:
    """Whether `path` is a regular file or does not exist; a device or a pipe cannot be replaced."""
    return path.is_file() or not path.exists()


def write(path: Path, content: bytes) -> None:
    """Write a file: first to a temporary one beside it, then by renaming, so that the file is always complete."""
    try:
        if not is_regular(path):
            path.write_bytes(content)
            return
        place = path.resolve()
        temporary = place.with_name(f"{NEW_PREFIX}{token_hex(16)}{place.suffix}")  # `mkstemp` would ignore the umask
        try:
            temporary.write_bytes(content)
            temporary.replace(place)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from None


def cache() -> Path:
    """Our folder in the user's cache folder."""
    try:
        from platformdirs import user_cache_path
    except ImportError:  # run from the sources, where nothing could be installed
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "multidraft"
    return user_cache_path("multidraft", appauthor=False)


def cannot_write(path: Path, error: OSError) -> AdviceError:
    """The error for a file that the system does not let us write."""
    return AdviceError(f"cannot write {str(path)!r} ({error.strerror}); make room, or choose another path")


def lock(place: Path, wait: bool = False) -> FileLock:
    """Lock a path for this process, until the lock is released or garbage-collected.

    The lock is a file in the user's cache, named by a hash of the path. If nothing can be written there, it lies beside
    the path. A process may lock the same path several times. Raises AdviceError if another process has the lock.
    """
    path = place.expanduser().resolve()
    name = sha256(str(path).encode(errors="surrogateescape")).hexdigest()[:32]
    try:
        return lock_with_note(cache() / "locks" / name, place, wait)
    except OSError:
        file_beside = path.with_name(f".{path.name}.lock")  # without a note, which would stay in the user's folder
    try:
        return acquire(file_beside, place, wait)
    except OSError as error:
        raise cannot_write(place, error) from None


def lock_with_note(file: Path, place: Path, wait: bool) -> FileLock:
    """Lock a path by this file, and write a note beside it that names the owner."""
    file_lock = acquire(file, place, wait)
    command = " ".join(" ".join(["multidraft", *sys.argv[1:]]).split())[:200]
    owner = f"process {os.getpid()} on {gethostname()} since {datetime.now():%F %T} (`{command}`)"
    file.with_suffix(NOTE_SUFFIX).write_text(owner, errors="backslashreplace")
    return file_lock


def acquire(file: Path, place: Path, wait: bool) -> FileLock:
    """Lock a path by this file; raises OSError if the file cannot be made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file_lock, note_file = FileLock(file, thread_local=False, is_singleton=True), file.with_suffix(NOTE_SUFFIX)
    try:
        file_lock.acquire(timeout=0)
    except Timeout:
        owner = (note_file.read_text() if note_file.exists() else "") or "another process"  # its note is not there yet
        if not wait:
            advice = "wait for it with --wait, stop it, or write elsewhere"
            raise AdviceError(f"{str(place)!r} is written by {owner}; {advice}") from None
        NOTES.warning("%s is written by %s; waiting for its end", place, owner)
        file_lock.acquire(poll_interval=POLL_SECONDS)
    return file_lock


@contextmanager
def hold(place: Path | None, wait: bool = False) -> Iterator[None]:
    """Lock a path for a block; None, a device and a pipe need no lock."""
    file_lock = None if place is None or not (place.is_dir() or is_regular(place)) else lock(place, wait)
    try:
        yield
    finally:
        if file_lock is not None:
            file_lock.release()
