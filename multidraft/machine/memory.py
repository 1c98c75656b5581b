"""How much memory there is, and how much something takes."""

import os
from pathlib import Path

import torch

LISTING = Path("/proc/meminfo")


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
