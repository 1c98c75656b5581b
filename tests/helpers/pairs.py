"""Target and draft distributions to test with: random ones, and those that break things."""

import torch
from torch import Tensor

from multidraft.auditing.pairs import ADVERSARIAL


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


def stacked_pairs() -> list[tuple[list[str], Tensor, Tensor]]:
    """The same pairs as a batch for each size of the vocabulary, with the names of its rows."""
    sizes: dict[int, list[tuple[str, Tensor, Tensor]]] = {}
    for pair in all_pairs():
        sizes.setdefault(len(pair[1]), []).append(pair)
    batches = [tuple(zip(*pairs, strict=True)) for pairs in sizes.values()]
    return [(list(names), torch.stack(targets), torch.stack(drafts)) for names, targets, drafts in batches]
