"""Where the time of a step goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

PARTS = ("draft", "target", "rule", "cache", "measure")


class Clock:
    """Seconds by the parts of a step."""

    def __init__(self, synchronise: bool):
        self.seconds, self.synchronise = dict.fromkeys(PARTS, 0.0), synchronise

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Book a block's time, after pending work on the GPU where asked."""
        start = time.perf_counter()
        yield
        if self.synchronise:
            torch.cuda.synchronize()
        self.seconds[name] += time.perf_counter() - start
