"""Target and draft distributions to test with: random ones, and those that break things."""

import torch
from torch import Tensor

from multidraft.auditing import pairs


def random_pair(seed: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """From flat to peaked; every third one has zeros in both."""
    return pairs.random_pair(vocabulary, seed % 3 == 0, torch.Generator().manual_seed(seed))


def all_pairs() -> list[tuple[str, Tensor, Tensor]]:
    """Every adversarial pair and thirty random ones, with a name for messages."""
    fixed = [(n, *(torch.tensor(v, dtype=torch.float64) for v in pair)) for n, pair in pairs.ADVERSARIAL_PAIRS.items()]
    return fixed + [(f"random {seed}", *random_pair(seed, 2 + seed % 4)) for seed in range(30)]


def stacked_pairs() -> list[tuple[list[str], Tensor, Tensor]]:
    """The same pairs as a batch for each size of the vocabulary, with the names of its rows."""
    sizes: dict[int, list[tuple[str, Tensor, Tensor]]] = {}
    for pair in all_pairs():
        sizes.setdefault(len(pair[1]), []).append(pair)
    batches = [tuple(zip(*group, strict=True)) for group in sizes.values()]
    return [(list(names), torch.stack(targets), torch.stack(drafts)) for names, targets, drafts in batches]
