"""Uniform random numbers for one row: its own stream, so that a row's tokens do not depend on its neighbours."""

from typing import Any

import torch

from multidraft.errors import AdviceError

BLOCK = 64


class Randomness:
    """Numbers in [0, 1) with 53 random bits from one generator, taken in blocks: one by one they cost far more."""

    def __init__(self, generator: torch.Generator):
        self.generator = generator
        self.block: list[float] = []

    def take(self, count: int) -> list[float]:
        """So many numbers."""
        if len(self.block) < count:
            size = max(BLOCK, count)
            more = torch.rand(size, generator=self.generator, dtype=torch.float64, device=self.generator.device)
            self.block = more.tolist() + self.block
        taken, self.block = self.block[len(self.block) - count :], self.block[: len(self.block) - count]
        return taken

    def number(self) -> float:
        """One number."""
        return self.take(1)[0]


def for_rows(generator: torch.Generator | list[torch.Generator] | None, rows: int) -> list[Randomness]:
    """A stream for each row: the generators given, or generators seeded from the one given or PyTorch's own."""
    check_generators(generator, rows)
    if isinstance(generator, list):
        return [Randomness(g) for g in generator]
    device = generator.device if generator is not None else None
    seeds = torch.randint(2**62, (rows,), generator=generator, device=device).tolist()
    return [Randomness(torch.Generator().manual_seed(seed)) for seed in seeds]


def check_generators(generator: Any, rows: int) -> None:
    """Raise unless there is none, one, or a list of one for each row."""
    listed = generator if isinstance(generator, list) else [generator] if generator is not None else []
    if wrong := [type(g).__name__ for g in listed if not isinstance(g, torch.Generator)]:
        raise AdviceError(f"generator is of type {wrong[0]}; pass a torch.Generator, or a list of one for each row")
    if isinstance(generator, list) and len(generator) != rows:
        raise AdviceError(f"there are {len(generator)} generators and {rows} rows; pass one for each, or a single one")
