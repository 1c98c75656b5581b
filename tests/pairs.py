"""Target and draft distributions to test with: random ones, and those that break things."""

import torch
from torch import Tensor

ADVERSARIAL = {
    "zeros": ([0.5, 0.0, 0.3, 0.2], [0.0, 0.4, 0.6, 0.0]),
    "ties": ([0.25, 0.25, 0.25, 0.25], [0.4, 0.4, 0.1, 0.1]),
    "equal": ([0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]),
    "disjoint": ([0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.7, 0.3]),
    "one-hot target": ([0.0, 1.0, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4]),
    "one-hot draft": ([0.1, 0.2, 0.3, 0.4], [0.0, 1.0, 0.0, 0.0]),
    "one-hot both": ([0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]),
    "one-hot apart": ([0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]),
    "near-equal": ([0.1 + 1e-13, 0.2 - 1e-13, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]),
    "subnormal": ([1e-310, 0.5, 0.5, 0.0], [0.5, 1e-310, 0.2, 0.3]),
    "tiny draft": ([0.97, 0.01, 0.01, 0.01], [1e-12, 0.4, 0.3, 0.3 - 1e-12]),
    "peaked": ([0.997, 0.001, 0.001, 0.001], [0.9, 0.05, 0.03, 0.02]),
}


def random_pair(seed: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """A Dirichlet pair; every third one has zeros in both."""
    generator = torch.Generator().manual_seed(seed)
    exponent = torch.rand(2, vocabulary, generator=generator, dtype=torch.float64) * 4
    weights = torch.rand(2, vocabulary, generator=generator, dtype=torch.float64) ** exponent
    if seed % 3 == 0:
        weights *= torch.rand(2, vocabulary, generator=generator, dtype=torch.float64) > 0.3
        weights[:, seed % vocabulary] += 0.1
    weights /= weights.sum(-1, keepdim=True)
    return weights[0], weights[1]


def all_pairs() -> list[tuple[str, Tensor, Tensor]]:
    """Every adversarial pair and thirty random ones, with a name for messages."""
    fixed = [(n, *(torch.tensor(v, dtype=torch.float64) for v in pair)) for n, pair in ADVERSARIAL.items()]
    return fixed + [(f"random {seed}", *random_pair(seed, 2 + seed % 4)) for seed in range(30)]
