"""A device: what it works on while the host goes on, what it launches at once, and how much memory it has."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LISTING = Path("/proc/meminfo")
Call = Callable[[], list[Tensor]]


def placed(values: Tensor | list, device: torch.device) -> Tensor:
    """A copy on the device, for which the host does not wait: its own memory has been read when the call returns.

    The host waits for all that came before where it looks at a value.
    """
    return (values if isinstance(values, Tensor) else torch.tensor(values)).to(device, non_blocking=True)


def captured(call: Call, pool: Any) -> Call:
    """A call's replay on a GPU over the same memory, as one launch; it runs twice before, to settle choices."""
    here, aside, graph = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        for _ in range(2):
            call()
    here.wait_stream(aside)
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # other threads may go on
        results = call()

    def replay() -> list[Tensor]:
        graph.replay()
        return [result.clone() for result in results]  # which the next replay of any graph of the pool may overwrite

    return replay


def available(device: torch.device) -> int | None:
    """Bytes that can be had on a device; None where nobody says."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return of_this_machine() if device.type == "cpu" else None


def of_this_machine() -> int | None:
    """Bytes that a program can still have; all that there are where the system does not say how many are taken."""
    if LISTING.exists():
        lines = LISTING.read_text().splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def readable(size: int) -> str:
    """Bytes as people read them."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
