"""Uniform random numbers for one row: its own stream, so that a row's tokens do not depend on its neighbours."""

import torch
from jaxtyping import Float
from torch import Tensor

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
    if isinstance(generator, list):
        return [Randomness(g) for g in generator]
    device = generator.device if generator is not None else None
    seeds = torch.randint(2**62, (rows,), generator=generator, device=device).tolist()
    return [Randomness(torch.Generator().manual_seed(seed)) for seed in seeds]
