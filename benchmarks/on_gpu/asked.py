"""What a piece is asked for, and how it keeps time."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

Line = dict[str, Any]  # of a piece's table, by column


class Skipped(Exception):
    """What a piece needs is not here; the report says what, and the next run looks again."""


@dataclass(frozen=True)
class PieceOptions:
    """Where to measure, how thoroughly, and where to leave what later pieces need."""

    name: str  # of the device
    quick: bool
    out: Path
    corpus: Path | None
    compiles: bool = True  # whether compiled steps are measured, too, which takes most of the time

    @cached_property
    def device(self) -> torch.device:
        """Where to measure."""
        return torch.device(self.name)

    def wait(self) -> None:
        """Until the device has done what it was asked."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, function: Callable[[], object]) -> float:
        """How long a call takes, until the device has done it."""
        self.wait()
        start = time.perf_counter()
        function()
        self.wait()
        return time.perf_counter() - start

    def milliseconds(self, function: Callable[[], object], repeats: int = 20) -> float:
        """The median over calls, after three that do not count."""
        repeats = 2 if self.quick else repeats
        times = [self.seconds(function) for _ in range(3 + repeats)][3:]
        return 1e3 * statistics.median(times)
