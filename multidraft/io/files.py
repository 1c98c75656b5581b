"""Files that a call writes: checked before the work, written whole or not at all."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from multidraft.errors import AdviceError, optional

PICTURES = (".svg", ".png", ".pdf")
NEW = ".new-"  # begins the name of a file that is not yet whole


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
        new = place.with_name(f"{NEW}{os.getpid()}{place.suffix}")
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
