"""Probabilities: checked with advice, made from logits, drawn with explicit randomness."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft import loops
from multidraft.errors import AdviceError
from multidraft.kinds import is_integer, is_number

SMALLEST_TEMPERATURE = 1e-3  # below it, logits of ordinary size overflow; 0 means the limit and is exact


def check_distribution(values: Tensor, name: str, total_at_most_one: bool = False) -> None:
    """Raise unless every row of `values` is a distribution (or, for a sub-probability target, sums to at most one)."""
    if not isinstance(values, Tensor):
        raise AdviceError(f"{name} must be a float tensor (..., vocabulary); got {type(values).__name__}")
    if not values.dtype.is_floating_point or values.ndim == 0 or values.shape[-1] == 0:
        raise AdviceError(f"{name} must be a float tensor (..., vocabulary); got {values.dtype} {tuple(values.shape)}")
    if values.dtype not in (torch.float32, torch.float64):
        raise AdviceError(f"{name} is {values.dtype}, too coarse to sum to one; pass logits.float().softmax(-1)")
    rows = values.reshape(-1, values.shape[-1])
    total = rows.double().sum(-1)
    slack = 1e-4
    low = 0.0 if total_at_most_one else 1 - slack
    bad = ~((total >= low) & (total <= 1 + slack)) | ~(rows >= 0).all(-1)
    if bad.any():
        row = int(bad.nonzero()[0])
        raise AdviceError(
            f"{name} row {row} sums to {total[row].item():.4g} with smallest entry {rows[row].min().item():.4g}; "
            "pass probabilities, not logits"
        )


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
    weights = torch.logspace(
        0, (1 - count) * min(30, 120 // count), count, base=2, dtype=logits.dtype, device=logits.device
    )
    weights = weights / weights.sum()
    return torch.zeros_like(logits).scatter_(-1, top, weights.expand(top.shape))


def pick(
    weights: Float[Tensor, "*batch vocabulary"], uniform: Float[Tensor, "*batch draws"]
) -> Int[Tensor, "*batch draws"]:
    """Tokens drawn with probability proportional to `weights`, by inverting the cumulative sum at each uniform number.

    Sums run in float64, a token of weight zero is never returned, and a row without weight gives -1.

    >>> pick(torch.tensor([0.25, 0.0, 0.75]), torch.tensor([0.2, 0.25, 0.9]))
    tensor([0, 2, 2])
    """
    if loops.usable(weights, uniform):
        return loops.pick(weights, uniform)
    uniform = uniform.double().clamp(max=loops.BELOW_ONE)  # times any sum it stays below that, whatever is rounded
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    total = cumulative[..., -1:]
    point = uniform * total
    index = torch.searchsorted(cumulative, point, right=True)
    index = index.minimum(torch.searchsorted(cumulative, total.contiguous()))  # a subnormal total may be the point
    return torch.where(total > 0, index, -1)


def most_likely(draft: Float[Tensor, "*batch vocabulary"], count: int) -> Int[Tensor, "*batch count"]:
    """The `count` most likely tokens, the lower id first among equals; -1 where there are none of positive probability.

    >>> most_likely(torch.tensor([0.25, 0.0, 0.75]), 3)
    tensor([ 2,  0, -1])
    """
    size = draft.shape[-1]
    value, token = draft.topk(min(count + 1, size), -1)
    if (value[..., 1:] == value[..., :-1]).logical_and(value[..., 1:] > 0).any():  # topk has no order among equals
        value, token = draft.sort(dim=-1, descending=True, stable=True)
    token = token.masked_fill(value <= 0, -1)[..., :count]
    return torch.nn.functional.pad(token, (0, count - token.shape[-1]), value=-1)


def descending(
    values: Float[Tensor, "*batch size"],
) -> tuple[Float[Tensor, "*batch size"], Int[Tensor, "*batch size"]]:
    """The values from the largest to the smallest, and where they were; equal ones in any order.

    On a CPU NumPy sorts with vector instructions, many times faster than PyTorch.
    """
    if values.device.type != "cpu":
        return values.sort(-1, descending=True)
    order = torch.from_numpy(np.argsort(-values.detach().numpy(), -1))
    return values.gather(-1, order), order


def normalise(weights: Float[Tensor, "*batch vocabulary"]) -> Float[Tensor, "*batch vocabulary"]:
    """Divide by the sum; a row of zeros stays zero."""
    return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def uniform(shape: tuple[int, ...], generator: torch.Generator | None, device: torch.device) -> Float[Tensor, "..."]:
    """Uniform numbers in [0, 1) with 53 random bits, made on the generator's device."""
    source = generator.device if generator is not None else device
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=source).to(device)
