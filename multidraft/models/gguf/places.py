"""Where a build of llama.cpp lies: where it is said, in a Python package that brings one, or where systems put it."""

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from multidraft.errors import AdviceError

FOLDER_VARIABLE = "MULTIDRAFT_LLAMA_LIB"  # the environment variable with the folder of a build
NAMES = {"win32": ("llama.dll",), "darwin": ("libllama.dylib", "libllama.*.dylib")}  # by system
NAMES_ELSEWHERE = ("libllama.so", "libllama.so.*", "libllama.*.so")
IN_XLLAMACPP = "xllamacpp.abi3.so"  # the whole of llama.cpp is in its extension module, outside of Windows
PACKAGES = {"llama_cpp": "lib", "xllamacpp": "."}  # that bring a build, and where it is in them
SYSTEM_FOLDERS = (
    *("/usr/local/lib", "/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),
    *("/opt/homebrew/lib", "/home/linuxbrew/.linuxbrew/lib"),
)


def llama_cpp_path(folder: str | Path | None = None) -> Path | None:
    """The file of the build in a folder, else in the one of `MULTIDRAFT_LLAMA_LIB`, else in the first place with one.

    A file stands for itself. Raises AdviceError where a folder that is named has none.
    """
    named = folder or os.environ.get(FOLDER_VARIABLE) or None
    if named is None:
        return next((path for place in usual_folders() if (path := build_in(place))), None)
    place = Path(named).expanduser()
    if place.is_file():
        return place.absolute()
    if path := build_in(place):
        return path.absolute()
    wanted = " or ".join(NAMES.get(sys.platform, NAMES_ELSEWHERE)[:1])
    reason = f"no {wanted} is in it" if place.is_dir() else "there is no such folder"
    origin = "the folder of llama.cpp" if folder else FOLDER_VARIABLE
    raise AdviceError(f"{origin} is {str(named)!r}, and {reason}; give the folder of a release of llama.cpp, unpacked")


def build_in(folder: Path) -> Path | None:
    """The library of llama.cpp in a folder, or in one of those that release archives unpack into."""
    for place in (folder, folder / "bin", folder / "lib", folder / "build" / "bin"):
        for name in (*NAMES.get(sys.platform, NAMES_ELSEWHERE), IN_XLLAMACPP):
            if libraries := sorted(place.glob(name)):
                return libraries[0]
    return None


def usual_folders() -> Iterator[Path]:
    """Where builds lie: in packages, then where Debian, Homebrew and those who compile put them."""
    for package, place in PACKAGES.items():
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield Path(folder) / place
    yield from map(Path, SYSTEM_FOLDERS)
