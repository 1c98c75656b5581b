"""From logits to distributions: temperature, top-k, top-p."""

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.sampling.gate import in_full, not_finite, problem_of, softmax

HEAD = 1024  # tokens that hold top-p nearly always, and are found many times faster than all are sorted


def distribution(
    logits: Float[Tensor, "*batch vocabulary"],
    temperature: float | int = 1.0,
    top_k: int | None = None,
    top_p: float | int | None = None,
) -> Float[Tensor, "*batch vocabulary"]:
    """The distribution that is really sampled from: temperature first, then top-k, then top-p, then renormalised.

    Computed in float32 at least, with sums in float64. Temperature 0 puts everything on the most likely token (the
    first among equals). Raises AdviceError on logits that make no distribution.

    >>> distribution(torch.tensor([0.0, 0.0, -9.0]), top_k=2)
    tensor([0.5000, 0.5000, 0.0000])
    """
    lines = logits.reshape(-1, logits.shape[-1])
    result, bad = distributions(lines, temperature, top_k, top_p)
    if bad:
        raise AdviceError(f"row {bad[0]} of the logits {problem_of(lines[bad[0]])}; check where they come from")
    return result.view(logits.shape)


def distributions(
    logits: Float[Tensor, "lines vocabulary"],
    temperature: float | int = 1.0,
    top_k: int | None = None,
    top_p: float | int | None = None,
) -> tuple[Float[Tensor, "lines vocabulary"], list[int]]:
    """Every line's `distribution`, and the lines that have none (theirs is undefined).

    >>> distributions(torch.tensor([[0.0, 1.0], [0.0, torch.nan]]), 0)
    (tensor([[0., 1.],
            [0., 1.]]), [1])
    """
    logits = in_full(logits)
    if temperature == 0:
        best = logits.argmax(-1, keepdim=True)
        return torch.zeros_like(logits).scatter_(-1, best, 1.0), not_finite(logits.gather(-1, best))
    if top_k is not None and top_k < logits.shape[-1]:
        smallest = logits.topk(top_k, -1).values[..., -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    probabilities, bad = softmax(logits, temperature)
    return nucleus(probabilities, top_p) if top_p is not None and top_p < 1 else probabilities, bad


def nucleus(probabilities: Float[Tensor, "lines vocabulary"], top_p: float) -> Float[Tensor, "lines vocabulary"]:
    """Keep the most likely tokens until they hold `top_p` (the one that crosses it included) and renormalise.

    Of equally likely tokens the last ones are kept, as transformers does where it sorts stably.

    >>> nucleus(torch.tensor([[0.25, 0.25, 0.5]]), 0.6)
    tensor([[0.0000, 0.3333, 0.6667]])
    """
    ordered = likeliest(probabilities, top_p)
    count = ((ordered.cumsum(-1, dtype=np.float64) - ordered) < top_p).sum(-1, keepdims=True).clip(1)
    least = torch.from_numpy(np.take_along_axis(ordered, count - 1, -1)).to(probabilities.device)
    weights = probabilities * (probabilities >= least)
    spare = weights.count_nonzero(-1)[:, None] - torch.from_numpy(count).to(probabilities.device)
    if (spare > 0).any():
        equal = probabilities == least
        weights.masked_fill_(equal & (equal.cumsum(-1) <= spare), 0.0)
    return weights / weights.sum(-1, keepdim=True, dtype=torch.float64).to(weights.dtype)


def likeliest(probabilities: Float[Tensor, "lines vocabulary"], mass: float) -> Float[np.ndarray, "lines count"]:
    """Every line's largest probabilities in descending order, at least as many as hold this mass."""
    if HEAD < probabilities.shape[-1]:
        head = largest(probabilities, HEAD)[1]
        if (head.sum(-1, dtype=np.float64) >= mass).all():
            return head
    return -np.sort(-probabilities.cpu().numpy(), -1)


def largest(
    scores: Float[Tensor, "lines vocabulary"], count: int
) -> tuple[Int[np.ndarray, "lines count"], Float[np.ndarray, "lines count"]]:
    """The ids and scores of every line's largest, in descending order, the lower id first among equals.

    Where a line holds NaN, so does its first score.
    """
    if scores.shape[-1] <= HEAD:  # counts are often equal, and `topk` then takes one or the other by the width
        values = scores.cpu().numpy()
        order = np.argsort(-np.where(np.isnan(values), np.inf, values), -1, kind="stable")[:, :count]
        return order, np.take_along_axis(values, order, -1)
    values, tokens = (part.cpu().numpy() for part in scores.topk(count, -1))
    order = np.lexsort((tokens, -values), -1)
    order = np.where(np.isnan(values[:, :1]), np.arange(count), order)  # where NaN stands first already
    return np.take_along_axis(tokens, order, -1), np.take_along_axis(values, order, -1)


def ranked(logits: Float[Tensor, "*batch vocabulary"], count: int) -> Float[Tensor, "*batch vocabulary"]:
    """A draft distribution for temperature 0: nearly all on the top token, a vanishing rest on the runners-up in order.

    It is the limit of falling temperature in a form that still tells the second most likely token from the third, so
    that laws without duplicates draft the `count` top tokens. The target is one-hot, and any draft leaves it exact.

    >>> ranked(torch.tensor([0.0, 2.0, 1.0]), 2)
    tensor([0.0000e+00, 1.0000e+00, 9.3132e-10])
    """
    logits = in_full(logits)
    count = min(count, logits.shape[-1])
    top = logits.topk(count, -1).indices
    weights = falling(count, logits.dtype, logits.device)
    return torch.zeros_like(logits).scatter_(-1, top, weights.expand(top.shape))


@lru_cache(64)
def falling(count: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " count"]:
    """Weights that sum up to one, each vanishing beside the one before it."""
    weights = torch.logspace(0, (1 - count) * min(30, 120 // count), count, base=2, dtype=dtype, device=device)
    return weights / weights.sum()
