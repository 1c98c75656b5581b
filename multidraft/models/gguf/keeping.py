"""Models that are made of others once, and kept in the user's cache."""

import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from multidraft.errors import AdviceError
from multidraft.io.files import NEW_PREFIX
from multidraft.models.gguf import header

STALE_SECONDS = 3600  # seconds; the work takes some ten


def cached_model(path: Path, cache: Path, form: str, make: Callable[[Path], None]) -> Path:
    """The model of a file in another form, below `cache`; `make` writes it now, in seconds, if it is not there.

    Raises AdviceError where nothing can be kept.
    """
    parts = [digest(part) for part in header.parts(path)]
    name = parts[0] if len(parts) == 1 else hashlib.sha256("".join(parts).encode()).hexdigest()
    place = cache / "models" / f"{path.stem}-{name[:16]}-{form}"
    if place.exists():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        clear(place.parent)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=NEW_PREFIX) as new:
            make(Path(new) / place.name)
            (Path(new) / place.name).rename(place)
    except (OSError, SafetensorError) as error:
        if not place.exists():  # else another process has been quicker
            reason = getattr(error, "strerror", None) or error
            raise AdviceError(f"cannot keep a model in {str(place.parent)!r} ({reason}); make room there") from None
    return place


def clear(folder: Path) -> None:
    """Remove what a kill has left half written; what is younger may be another process's work."""
    for leftover in folder.glob(f"{NEW_PREFIX}*"):
        if time.time() - leftover.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(leftover, ignore_errors=True)


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise AdviceError(f"cannot read the model {str(path)!r} ({error.strerror}); check the path") from None
