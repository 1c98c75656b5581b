"""From logits to distributions: temperature, top-k, top-p."""

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.errors.checks import is_integer, is_number
from multidraft.verification.distributions import descending
from multidraft.verification.loops import paired

SMALLEST_TEMPERATURE = 1e-3  # below it, logits of ordinary size overflow; 0 means the limit and is exact


def check_sampling(temperature: float | int, top_k: int | None, top_p: float | int | None) -> None:
    """Raise on settings that make no distribution."""
    if not is_number(temperature) or (temperature != 0 and not SMALLEST_TEMPERATURE <= temperature < float("inf")):
        raise AdviceError(
            f"temperature {temperature!r} is out of range; use 0 for greedy, or a number of at least "
            f"{SMALLEST_TEMPERATURE}"
        )
    if top_k is not None and (not is_integer(top_k) or top_k < 1):
        raise AdviceError(f"top_k {top_k!r} keeps no token; use a whole number, at least 1, or leave it out")
    if top_p is not None and not (is_number(top_p) and 0 < top_p <= 1):
        raise AdviceError(f"top_p {top_p!r} is out of range; use a number in (0, 1], or leave it out")


def distribution(
    logits: Float[Tensor, "*batch vocabulary"],
    temperature: float | int = 1.0,
    top_k: int | None = None,
    top_p: float | int | None = None,
) -> Float[Tensor, "*batch vocabulary"]:
    """The distribution that is really sampled from: temperature first, then top-k, then top-p, then renormalised.

    Computed in float32 at least. Temperature 0 puts everything on the most likely token (the first among equals).

    >>> distribution(torch.tensor([0.0, 0.0, -9.0]), top_k=2)
    tensor([0.5000, 0.5000, 0.0000])
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if temperature == 0:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    logits = logits / temperature if temperature != 1 else logits
    if top_k is not None and top_k < logits.shape[-1]:
        smallest = logits.topk(top_k, -1).values[..., -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    probabilities = logits.softmax(-1)
    return nucleus(probabilities, top_p) if top_p is not None and top_p < 1 else probabilities


def nucleus(probabilities: Float[Tensor, "*batch vocabulary"], top_p: float) -> Float[Tensor, "*batch vocabulary"]:
    """Keep the most likely tokens until they hold `top_p` (the one that crosses it included) and renormalise."""
    ordered, index = descending(probabilities)
    before = ordered.double().cumsum(-1) - ordered
    kept = ordered.masked_fill(before >= top_p, 0.0)
    kept = kept / kept.sum(-1, keepdim=True)
    return torch.zeros_like(probabilities).scatter_(-1, index, kept)


def ranked(logits: Float[Tensor, "*batch vocabulary"], count: int) -> Float[Tensor, "*batch vocabulary"]:
    """A draft distribution for temperature 0: nearly all on the top token, a vanishing rest on the runners-up in order.

    It is the limit of falling temperature in a form that still tells the second most likely token from the third, so
    that laws without duplicates draft the `count` top tokens. The target is one-hot, and any draft leaves it exact.

    >>> ranked(torch.tensor([0.0, 2.0, 1.0]), 2)
    tensor([0.0000e+00, 1.0000e+00, 9.3132e-10])
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    count = min(count, logits.shape[-1])
    top = logits.topk(count, -1).indices
    weights = falling(count, logits.dtype, logits.device)
    return torch.zeros_like(logits).scatter_(-1, top, weights.expand(top.shape))


@paired("multidraft.sampling.drafting_loops", lambda logits, *_: logits.dtype == np.float32)
def drafting(
    logits: Float[np.ndarray, "lines vocabulary"], temperature: float | int, count: int
) -> Float[np.ndarray, "lines vocabulary"]:
    """What `count` drafts are drawn from where nothing but a temperature is asked for."""
    tensor = torch.from_numpy(logits)
    return (distribution(tensor, temperature) if temperature else ranked(tensor, count)).numpy()


@lru_cache(64)
def falling(count: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " count"]:
    """Weights that sum up to one, each vanishing beside the one before it."""
    weights = torch.logspace(0, (1 - count) * min(30, 120 // count), count, base=2, dtype=dtype, device=device)
    return weights / weights.sum()
