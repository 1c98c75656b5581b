"""Probabilities: checked with advice, drawn with explicit randomness."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification import loops
from multidraft.verification.precision import FACTOR_BELOW_ONE, Rows


def describe(value: object) -> str:
    """A value's type, and for a tensor its dtype and shape, and where it is if that is unusual."""
    if isinstance(value, Tensor):
        place = "" if has_values(value) else f", {value.layout} on {value.device}"
        return f"a tensor of type {value.dtype} and shape {tuple(value.shape)}{place}"
    return f"{type(value).__name__} {str(value)[:60]!r}"


def has_values(tensor: Tensor) -> bool:
    """Whether it is a dense tensor with numbers in it."""
    return tensor.layout == torch.strided and tensor.device.type != "meta"


def check_distribution(values: Tensor, name: str, total_at_most_one: bool = False) -> None:
    """Raise unless every row of `values` is a distribution (or, for a sub-probability target, sums to at most one)."""
    is_float = isinstance(values, Tensor) and values.is_floating_point() and has_values(values)
    if not (is_float and values.ndim > 0 and values.shape[-1] > 0):
        raise AdviceError(f"{name} must be a dense float tensor (..., vocabulary); got {describe(values)}")
    if values.dtype not in (torch.float32, torch.float64):
        raise AdviceError(f"{name} is {values.dtype}, too coarse to sum to one; pass logits.float().softmax(-1)")
    rows = values.reshape(-1, values.shape[-1])
    total, slack = rows.double().sum(-1), 1e-4
    least = 0.0 if total_at_most_one else 1 - slack
    bad = ~((total >= least) & (total <= 1 + slack)) | ~(rows >= 0).all(-1)
    if bad.any():
        row = int(bad.nonzero()[0])
        low, whole = rows[row].min().item(), total[row].item()
        nearly = low >= 0 and abs(whole - 1) < 0.01
        advice = "take its softmax in float64" if nearly else "pass probabilities, not logits"
        raise AdviceError(f"{name} row {row} sums to {whole:.6g} with smallest entry {low:.4g}; {advice}")


def pick(weights: Rows, uniform: Float[Tensor, "*batch draws"]) -> Int[Tensor, "*batch draws"]:
    """Tokens drawn with probability proportional to `weights`, by inverting the cumulative sum at each uniform number.

    Sums run in float64, a token of weight zero is never returned, and a row without weight gives -1.

    >>> pick(torch.tensor([0.25, 0.0, 0.75]), torch.tensor([0.2, 0.25, 0.9]))
    tensor([0, 2, 2])
    """
    uniform = uniform.double().clamp(max=FACTOR_BELOW_ONE)  # times any sum it stays below that, whatever is rounded
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    total = cumulative[..., -1:]
    point = uniform * total
    index = torch.searchsorted(cumulative, point, right=True)
    index = index.minimum(torch.searchsorted(cumulative, total.contiguous()))  # a subnormal total may be the point
    return torch.where(total > 0, index, -1)


def pick_each(weights: Float[Tensor, "rows vocabulary"], numbers: list[float]) -> list[int]:
    """One token of every row, as `pick` draws it with the row's number."""
    if loops.usable(weights):
        return loops.pick_lines(weights, numbers)
    drawn = torch.tensor(numbers, dtype=torch.float64)[:, None].to(weights.device, non_blocking=True)
    return pick(weights, drawn)[:, 0].tolist()


def most_likely(draft: Rows, count: int) -> Int[Tensor, "*batch count"]:
    """The `count` most likely tokens, the lower id first among equals; -1 where there are none of positive probability.

    >>> most_likely(torch.tensor([0.25, 0.0, 0.75]), 3)
    tensor([ 2,  0, -1])
    """
    value, token = draft.topk(min(count + 1, draft.shape[-1]), -1)
    if (value[..., 1:] == value[..., :-1]).logical_and(value[..., 1:] > 0).any():  # topk has no order among equals
        value, token = draft.sort(dim=-1, descending=True, stable=True)
    token = token.masked_fill(value <= 0, -1)[..., :count]
    return torch.nn.functional.pad(token, (0, count - token.shape[-1]), value=-1)


def descending(values: Float[Tensor, "*batch size"]) -> tuple[Float[Tensor, "*batch size"], Int[Tensor, "*batch size"]]:
    """The values from the largest to the smallest, and where they were; equal ones in any order."""
    if not values.is_cpu:
        return values.sort(-1, descending=True)
    order = torch.from_numpy(np.argsort(-values.detach().numpy(), -1))  # many times faster than PyTorch
    return values.gather(-1, order), order


def normalise(weights: Rows) -> Rows:
    """Divide by the sum, which is taken in float64; a row of zeros stays zero.

    >>> normalise(torch.tensor([1.0, 3.0]))
    tensor([0.2500, 0.7500])
    """
    total = weights.sum(-1, keepdim=True, dtype=torch.float64).to(weights.dtype)
    return weights / total.clamp(min=torch.finfo(weights.dtype).tiny)


def uniform(shape: tuple[int, ...], generator: torch.Generator | None, device: torch.device) -> Float[Tensor, "..."]:
    """Uniform numbers in [0, 1) with 53 random bits, made on the generator's device; raises on what is no generator."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise AdviceError(f"generator is {describe(generator)}; pass a torch.Generator, or leave it out")
    source = generator.device if generator is not None else device
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=source).to(device)
