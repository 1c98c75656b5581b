"""Pairs that are made to break a rule, without limit, from a seed.

A kind is a way of spoiling a pair, on which a rule that is right in the middle goes wrong at an end. All are plausible:
a ban, a penalty, a fine-tune of the same model, a temperature.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

Pairs = tuple[Float[Tensor, "pairs vocabulary"], Float[Tensor, "pairs vocabulary"]]
Spoil = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]  # weights of target and draft

TINY = [1e-17, 1e-30, 1e-60, 1e-120, 1e-300, 2e-308, 1e-310, 5e-324]  # lost in a sum, in a product, in a quotient


def make_peaks(target: Tensor, draft: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """From flat to nearly one-hot, independently."""
    sharpness = 40 * torch.rand(2, *target.shape[:-1], 1, generator=generator, dtype=torch.float64) ** 2
    return target ** sharpness[0], draft ** sharpness[1]


def near_equal(target: Tensor, draft: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The draft is the target but for 1e-3 to 1e-17 of each weight: several drafts cover it, and alpha* rounds to 1."""
    size = 10.0 ** -(3 + 14 * torch.rand(*target.shape[:-1], 1, generator=generator, dtype=torch.float64))
    return target, target * (1 + size * (2 * draft - 1))


def integers(target: Tensor, draft: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Small whole numbers: ties of target, of draft and of their ratio, and zeros."""
    return (target * 6).floor(), (draft * 6).floor()


def push_down(target: Tensor, draft: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two nearly equal models of which the target hardly allows the draft's favourite."""
    target, draft = near_equal(target, draft, generator)
    return target.scatter(-1, draft.argmax(-1, keepdim=True), tiny(target[..., :1], generator)), draft


def ban_tokens(target: Tensor, draft: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens with exactly nothing, in the target, in the draft, or in both."""
    kept = torch.rand(2, *target.shape, generator=generator) > torch.rand(2, *target.shape[:-1], 1, generator=generator)
    return target * kept[0], draft * kept[1]


def vanishing(target: Tensor, draft: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens with next to nothing, down to subnormal numbers."""
    rare = torch.rand(2, *target.shape, generator=generator) < 0.5
    return torch.where(rare[0], tiny(target, generator), target), torch.where(rare[1], tiny(draft, generator), draft)


def tiny(like: Tensor, generator: torch.Generator) -> Tensor:
    """One of `TINY` at every place."""
    return torch.tensor(TINY, dtype=torch.float64)[torch.randint(len(TINY), like.shape, generator=generator)]


KINDS: dict[str, Spoil] = {
    "peaked": make_peaks,
    "near_equal": near_equal,
    "integers": integers,
    "pushed_down": push_down,
    "banned": ban_tokens,
    "vanishing": vanishing,
}


def adversarial(kind: str, pairs: int, vocabulary: int, seed: int) -> Pairs:
    """So many targets and drafts of a kind, in float64, each summing to one."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(2, pairs, vocabulary, generator=generator, dtype=torch.float64)
    target, draft = KINDS[kind](weights[0], weights[1], generator)
    return normalise(target, weights[0]), normalise(draft, weights[1])


def normalise(values: Tensor, otherwise: Tensor) -> Tensor:
    """Divided by the sum; rows with too little to divide are those of `otherwise`."""
    total = values.sum(-1, keepdim=True)
    values = torch.where(total > 1e-300, values, otherwise)
    return values / values.sum(-1, keepdim=True)
