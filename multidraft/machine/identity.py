"""What a result was measured on: hardware and versions."""

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def hardware() -> dict[str, str | int | None]:
    """The processor's name, the threads that torch uses, and the GPU's name where there is one."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": cpu(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
    }


@cache
def cpu() -> str:
    """The processor's name."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def versions(*more: str) -> dict[str, str]:
    """Versions of what decides a result, as far as it is installed, and of `more` packages."""
    packages = filter(installed, ("multidraft", "torch", "transformers", "tokenizers", "numba", *more))
    return {"python": platform.python_version()} | {package: version_of(package) for package in packages}


def commit() -> str:
    """The commit that this code is of, and whether anything has been changed since; "unknown" without git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=-changed", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip() or "unknown"
    except (OSError, subprocess.SubprocessError):
        return "unknown"


@cache
def installed(package: str) -> bool:
    """Whether a package is there."""
    try:
        return bool(version_of(package))
    except PackageNotFoundError:
        return False


@cache
def version_of(package: str) -> str:
    """The version of an installed package."""
    return version(package)
