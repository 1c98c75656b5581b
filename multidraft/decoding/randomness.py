"""Uniform random numbers for one row: its own stream, so that a row's tokens do not depend on its neighbours."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.errors import AdviceError

BLOCK = 64


class Randomness:
    """Numbers in [0, 1) from one generator; single ones come from blocks, which costs far less than one by one."""

    def __init__(self, generator: torch.Generator):
        self.generator = generator
        self.block: list[float] = []

    def uniform(self, *shape: int) -> Float[Tensor, "..."]:
        """A tensor of numbers, on the generator's device."""
        return torch.rand(shape, generator=self.generator, dtype=torch.float64, device=self.generator.device)

    def number(self) -> float:
        """One number."""
        if not self.block:
            self.block = self.uniform(BLOCK).tolist()
        return self.block.pop()

    def coin(self, probability: float) -> bool:
        """True with the given probability."""
        return self.number() < probability


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
