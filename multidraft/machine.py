"""The machine that this runs on: its processors and packages, its memory, and the signals that end a run.

torch is imported where it is used: the command line hears signals before it loads anything.
"""

import os
import platform
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PROCESSORS, MEMORY = Path("/proc/cpuinfo"), Path("/proc/meminfo")
GROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
GROUP_FILES = "memory.max", "memory.current", "inactive_file "  # of control groups of version 2, and of version 1
GROUP_FILES_1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "
LOADING = "<frozen importlib._bootstrap>"
STOPPED = 130  # the exit code of an interrupted command, as a shell gives it
BROKEN = 70  # that of a program with a fault of its own (EX_SOFTWARE), which a supervisor starts anew


def hardware() -> dict[str, str | int | None]:
    """The processor's name, the threads that torch uses, and the GPU's name where there is one."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    vectors = torch.backends.cpu.get_cpu_capability()
    return {"cpu": cpu(), "vectors": vectors, "threads": torch.get_num_threads(), "gpu": gpu}


@cache
def cpu() -> str:
    """The processor's name."""
    return listed(PROCESSORS, "model name") or platform.processor() or platform.machine()


@cache
def versions(*more: str) -> dict[str, str]:
    """Versions of what decides a result, as far as it is installed, and of `more` packages."""
    found = {"python": platform.python_version()}
    for package in ("multidraft", "torch", "transformers", "tokenizers", "numba", *more):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def commit() -> str:
    """The commit that this code is of, and whether anything has been changed since; "unknown" without git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=-changed", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip() or "unknown"
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def available(device: "torch.device") -> int | None:
    """Bytes that can be had on a device, as far as it tells; of memory no more than a container leaves."""
    import torch

    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    if device.type != "cpu":
        return None
    return min((size for size in (memory_of_host(), *left_by_groups()) if size is not None), default=None)


def memory_of_host() -> int | None:
    """Bytes that can be had on the whole machine; all of them where it does not say how many are taken."""
    if known := listed(MEMORY, "MemAvailable"):
        return int(known.split()[0]) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def left_by_groups() -> Iterator[int]:
    """Bytes that are left by each control group that this process is in, such as a container, and that has a limit."""
    lines = MEMBERSHIP.read_text().splitlines() if MEMBERSHIP.exists() else []
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if "memory" in controllers.split(","):
            mounts, names = [GROUPS / "memory"], GROUP_FILES_1
        else:
            mounts, names = [GROUPS, GROUPS / "unified"] if not controllers else [], GROUP_FILES
        for mount in mounts:
            group = mount / path.lstrip("/")
            for folder in (group, *group.parents):
                if folder.is_relative_to(mount) and (left := left_by(folder, names)) is not None:
                    yield left


def left_by(group: Path, names: tuple[str, str, str]) -> int | None:
    """Bytes that one of them leaves, if it has a limit: pages of files that were not used lately can be given up."""
    limit, used, unused = names
    try:
        left = int((group / limit).read_text()) - int((group / used).read_text())
        lines = (group / "memory.stat").read_text().splitlines()
        return max(left + sum(int(line.split()[1]) for line in lines if line.startswith(unused)), 0)
    except (OSError, ValueError):
        return None


def listed(path: Path, name: str) -> str | None:
    """What a listing, which not every system has, says of something."""
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def readable(size: int) -> str:
    """Bytes as people read them."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def hear_signals(how: Callable[[int, FrameType | None], None] | signal.Handlers | None = None) -> None:
    """From here on Ctrl-C and a polite kill raise KeyboardInterrupt, or do something else."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, how or interrupted)


def interrupted(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; while a module is loaded, which might swallow it, end at once with one line."""
    while frame is not None:
        if frame.f_code.co_filename == LOADING:
            os.write(2, b"multidraft: stopped\n")
            os._exit(STOPPED)
        frame = frame.f_back
    raise KeyboardInterrupt
