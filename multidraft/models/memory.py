"""How much memory there is, and how much something takes."""

from pathlib import Path

import torch

LISTING = Path("/proc/meminfo")


def available(device: torch.device) -> int | None:
    """Bytes that can be had on a device; None where nobody says."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    lines = LISTING.read_text().splitlines() if device.type == "cpu" and LISTING.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def readable(size: int) -> str:
    """Bytes as people read them."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
