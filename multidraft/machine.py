"""The machine: its processor, package versions, available memory, and the signals that end a run.

torch is imported inside functions, because the command line handles signals before it loads torch.
"""

import os
import platform
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CPU_INFO = Path("/proc/cpuinfo")
CGROUP_ROOT, CGROUPS_OF_PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
GROUP_FILES_V2 = "memory.max", "memory.current", "inactive_file "  # control groups version 2; below version 1
GROUP_FILES_V1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "
BUSY_LOAD = 1.1  # load average per processor; a process of ours alone makes up to 1
IMPORT_SYSTEM = "<frozen importlib._bootstrap>"
SIGNALS: list[int] = []  # that have come
EXIT_BROKEN = 70  # the exit code of a fault of the program (EX_SOFTWARE); a supervisor restarts it


def hardware() -> dict[str, str | int | None]:
    """The processor's name and vector instructions, torch's threads, and the GPU's name if there is one."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    vectors = torch.backends.cpu.get_cpu_capability()
    return {"cpu": cpu(), "vectors": vectors, "threads": torch.get_num_threads(), "gpu": gpu}


@cache
def cpu() -> str:
    """The processor's name."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return name or platform.processor() or platform.machine()


@cache
def versions(*packages: str) -> dict[str, str]:
    """Versions of the installed packages that affect results, and of `packages`."""
    version_of = {"python": platform.python_version()}
    for package in ("multidraft", "torch", "transformers", "tokenizers", "numba", *packages):
        with suppress(PackageNotFoundError):
            version_of[package] = version(package)
    return version_of


def is_busy() -> bool:
    """Whether more runs on this machine than its processors can do at once, so that measured seconds mean nothing."""
    import psutil

    return psutil.getloadavg()[0] > BUSY_LOAD * processors()


@cache
def warn_of_spinning() -> None:
    """Warn, once, on a busy machine where idle threads of torch spin for long: it was imported before multidraft."""
    import torch

    briefly = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys()
    if not briefly and torch.get_num_threads() > 1 and sys.platform == "linux":
        warnings.warn(
            "this machine is busy, and torch was imported before multidraft, so that its idle threads spin for "
            "milliseconds: steps may take ten times as long; import multidraft first, or set GOMP_SPINCOUNT=3000",
            stacklevel=3,
        )


@cache
def processors() -> int:
    """How many there are; asking the system takes a tenth of a millisecond."""
    import psutil

    return psutil.cpu_count() or 1


def commit() -> str:
    """This code's commit, with "-changed" if files differ from it; "unknown" without git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=-changed", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip() or "unknown"
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def available(device: "torch.device") -> int | None:
    """Available bytes on a device, if known; on the CPU at most what the container's limit leaves."""
    import psutil
    import torch

    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    if device.type != "cpu":
        return None
    return min([psutil.virtual_memory().available, *free_in_groups()])


def free_in_groups() -> Iterator[int]:
    """Bytes left in each control group with a limit that this process is in, such as a container.

    psutil does not know of them.
    """
    lines = CGROUPS_OF_PROCESS.read_text().splitlines() if CGROUPS_OF_PROCESS.exists() else []
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if "memory" in controllers.split(","):
            mounts, names = [CGROUP_ROOT / "memory"], GROUP_FILES_V1
        else:
            mounts, names = [CGROUP_ROOT, CGROUP_ROOT / "unified"] if not controllers else [], GROUP_FILES_V2
        for mount in mounts:
            group = mount / path.lstrip("/")
            for folder in (group, *group.parents):
                if folder.is_relative_to(mount) and (free := free_in_group(folder, names)) is not None:
                    yield free


def free_in_group(group: Path, names: tuple[str, str, str]) -> int | None:
    """Bytes left in a control group, if it has a limit; inactive file pages count as free."""
    limit, used, unused = names
    try:
        free = int((group / limit).read_text()) - int((group / used).read_text())
        lines = (group / "memory.stat").read_text().splitlines()
        return max(free + sum(int(line.split()[1]) for line in lines if line.startswith(unused)), 0)
    except (OSError, ValueError):
        return None


def format_bytes(size: int) -> str:
    """A number of bytes in MiB or GiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def handle_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers | None = None) -> None:
    """From here on Ctrl-C and SIGTERM raise KeyboardInterrupt, or call `handler`."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler or raise_interrupt)


def exit_interrupted() -> int:
    """The exit code of an interrupted command, as a shell gives it: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + (SIGNALS[-1] if SIGNALS else signal.SIGINT)


def raise_interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; while a module is imported, which might swallow it, exit at once with one line."""
    SIGNALS.append(number)
    while frame is not None:
        if frame.f_code.co_filename == IMPORT_SYSTEM:
            os.write(2, b"multidraft: stopped\n")
            os._exit(exit_interrupted())
        frame = frame.f_back
    raise KeyboardInterrupt
