"""From lines of logits to distributions: temperature, top-k, top-p, min-p, and the target's with all of its settings.

A line is one row's logits at one node; all lines of a call have the same settings. Settings that look back also need
each line's prefix, which is the whole sequence that ends at the node. Logits that make no distribution are a fault of
their line alone.
"""

import math

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.sampling.processors import Prefixes, Processors, find_faults, process_lines
from multidraft.sampling.row_faults import Faults, Lines, distribution_error, upcast
from multidraft.sampling.settings import Sampling
from multidraft.sampling.truncation import TOP_P_HEAD, truncated_lines
from multidraft.verification import loops
from multidraft.verification.precision import Rows

TARGET = "the target model"


def distribution(
    logits: Rows, temperature: float | int = 1.0, top_k: int | None = None, top_p: float | int | None = None
) -> Rows:
    """The distribution that is sampled from: temperature first, then top-k, then top-p, then renormalised.

    Computed in float32 at least, with sums in float64. At temperature 0 the most likely token has probability 1
    (the first among equals). Raises AdviceError on logits that make no distribution.

    >>> distribution(torch.tensor([0.0, 0.0, -9.0]), top_k=2)
    tensor([0.5000, 0.5000, 0.0000])
    """
    lines = logits.reshape(-1, logits.shape[-1])
    probs, bad_lines = distributions(lines, temperature, top_k, top_p)
    if bad_lines:
        error = distribution_error(lines[bad_lines[0]])
        raise AdviceError(f"row {bad_lines[0]} of the logits {error}; check where they come from")
    return probs.view(logits.shape)


def distributions(
    logits: Lines,
    temperature: float | int = 1.0,
    top_k: int | None = None,
    top_p: float | int | None = None,
    min_p: float | int | None = None,
) -> tuple[Lines, list[int]]:
    """Every line's `distribution`, and the lines that have none, whose values are undefined."""
    logits = upcast(logits)
    if temperature == 0:
        probs, largest = one_hot(logits)
        return probs, not_finite(largest)
    settings = float(temperature), top_k, None if top_p is None or top_p >= 1 else float(top_p), float(min_p or 0.0)
    if not any(settings[1:]) or not loops.usable(logits) or logits.dtype != torch.float32:
        return cut_softmax(logits, *settings)
    probs, bad_lines, wide_lines = truncated_lines(logits, *settings)
    for line in wide_lines:  # each alone: what becomes of a line must not depend on the others
        probs[line] = cut_softmax(logits[line : line + 1], *settings)[0][0]
    return probs, bad_lines


def cut_softmax(
    logits: Lines, temperature: float, top_k: int | None, top_p: float | None, min_p: float
) -> tuple[Lines, list[int]]:
    """The same at a temperature above 0, by operations on whole lines."""
    probs, bad_lines = softmax(most_likely_logits(logits, top_k), temperature)
    probs = probs if top_p is None else nucleus(probs, top_p)
    return likely_enough(probs, min_p) if min_p else probs, bad_lines


def most_likely_tokens(logits: Lines) -> Int[Tensor, " lines"]:
    """Every line's token with the largest score, the first among equals; of a line with NaN the first of these."""
    if logits.is_cpu:  # NumPy takes a third of the time
        return torch.from_numpy(logits.detach().numpy().argmax(-1))
    return logits.argmax(-1)


def one_hot(logits: Lines) -> tuple[Lines, Float[Tensor, "lines 1"]]:
    """All probability on every line's largest score, and that score."""
    best = most_likely_tokens(logits)[:, None]
    return torch.zeros_like(logits).scatter_(-1, best, 1.0), logits.gather(-1, best)


def most_likely_logits(logits: Lines, top_k: int | None) -> Lines:
    """The `top_k` largest scores of every line, and those equal to the last; the others are minus infinity."""
    if top_k is None or top_k >= logits.shape[-1]:
        return logits
    return logits.masked_fill(logits < logits.topk(top_k, -1).values[..., -1:], -torch.inf)


def is_greedy(sampling: Sampling) -> bool:
    """Whether the target is the likeliest token alone."""
    return sampling.temperature == 0 and sampling.before is None and sampling.after is None


def pending_distributions(logits: Lines, sampling: Sampling) -> tuple[Lines, Bool[Tensor, " lines"]]:
    """`target_distributions` without processors, and which lines are settled; on a device the CPU does not wait.

    A line is not settled if it makes no distribution, or if its nucleus has more than TOP_P_HEAD tokens.
    """
    logits, top_p = upcast(logits), sampling.top_p
    if sampling.temperature == 0:
        probs, largest = one_hot(logits)
        return probs, largest[:, 0].isfinite()
    probs, largest = softmax_and_largest(most_likely_logits(logits, sampling.top_k), float(sampling.temperature))
    is_settled = largest[:, 0].isfinite()
    if top_p is not None and top_p < 1:
        probs, is_whole = nucleus_of_head(probs, top_p)
        is_settled &= is_whole
    return likely_enough(probs, float(sampling.min_p)) if sampling.min_p else probs, is_settled


def nucleus_of_head(probs: Lines, top_p: float) -> tuple[Lines, Bool[Tensor, " lines"]]:
    """`nucleus` of lines that have it among their TOP_P_HEAD likeliest tokens, and which these are."""
    head = probs.topk(min(TOP_P_HEAD, probs.shape[-1]), -1).values
    sums = head.cumsum(-1, dtype=torch.float64)
    count = ((sums - head) < top_p).sum(-1, keepdim=True).clamp(min=1)
    threshold = head.gather(-1, count - 1)
    return likeliest_part(probs, threshold, count), (sums[:, -1] >= top_p) | (head.shape[-1] == probs.shape[-1])


def nucleus(probs: Lines, top_p: float) -> Lines:
    """Keep the most likely tokens until they hold `top_p`, with the one that crosses it, and renormalise.

    Of equally likely tokens the last ones are kept, as in transformers with a stable sort.
    """
    sorted_probs = None
    if TOP_P_HEAD < probs.shape[-1]:
        sorted_probs = probs.topk(TOP_P_HEAD, -1).values.cpu().numpy()
    if sorted_probs is None or (sorted_probs.sum(-1, dtype=np.float64) < top_p).any():
        sorted_probs = -np.sort(-probs.cpu().numpy(), -1)
    count = ((sorted_probs.cumsum(-1, dtype=np.float64) - sorted_probs) < top_p).sum(-1, keepdims=True).clip(1)
    threshold = torch.from_numpy(np.take_along_axis(sorted_probs, count - 1, -1)).to(probs.device)
    return likeliest_part(probs, threshold, torch.from_numpy(count).to(probs.device))


def likeliest_part(probs: Lines, threshold: Float[Tensor, "lines 1"], count: Int[Tensor, "lines 1"]) -> Lines:
    """The `count` most likely tokens of every line, the least of which has the threshold, renormalised."""
    weights = probs * (probs >= threshold)
    surplus = weights.count_nonzero(-1)[:, None] - count
    if not probs.is_cpu or (surplus > 0).any():  # elsewhere the CPU would wait for what it looks at
        is_tied = probs == threshold
        weights.masked_fill_(is_tied & (is_tied.cumsum(-1) <= surplus), 0.0)
    return divide_by_sums(weights)


def likely_enough(probs: Lines, min_p: float | int) -> Lines:
    """Keep the tokens that are at least `min_p` times as likely as the likeliest one, and renormalise."""
    return divide_by_sums(probs * (probs >= min_p * probs.amax(-1, keepdim=True)))


def target_distributions(logits: Lines, sampling: Sampling, prefixes: Prefixes | None = None) -> tuple[Lines, Faults]:
    """The distributions that the output must have, and the faults of lines that have none (they get a uniform one).

    In float32, or float64 where the logits are; each sums to one within 1e-6.

    >>> probs, faults = target_distributions(torch.tensor([[0.0, 0.0], [torch.nan, 0.0]]), Sampling())
    >>> probs[0], str(faults[1].at(row=1, position=7))
    (tensor([0.5000, 0.5000]), 'row 1, position 7: the target model gives token 0 the score nan; check its weights')
    """
    probs, faults = distributions_behind(sampling.before, logits, prefixes, sampling)
    if sampling.after is None:
        return probs, faults
    filtered_probs, faults_after = distributions_behind(sampling.after, probs.log(), prefixes, Sampling())
    if faults:
        filtered_probs[[*faults]] = 1 / probs.shape[-1]
    return filtered_probs, faults_after | faults


def distributions_behind(
    processors: Processors | None, logits: Lines, prefixes: Prefixes | None, sampling: Sampling
) -> tuple[Lines, Faults]:
    """The distributions of processed lines, with the temperature and cuts of the settings alone."""
    scores, faults = process_lines(processors, logits, prefixes)
    probs, bad_lines = distributions(scores, *sampling.numbers)
    faults |= find_faults(processors, TARGET, logits, prefixes, {*bad_lines} - {*faults})
    if faults:
        probs[[*faults]] = 1 / probs.shape[-1]
    return probs, faults


def softmax(scores: Lines, temperature: float | int = 1.0) -> tuple[Lines, list[int]]:
    """Every line's softmax at a temperature above 0, and the lines that have none, whose values are undefined.

    A line has a softmax if its largest score is finite: then no score is NaN or plus infinity. Sums are float64, so
    that a line sums to one within 1e-6 whatever its length.

    >>> softmax(torch.tensor([[0.0, 0.0], [0.0, torch.inf]]))[1]
    [1]
    """
    scores = upcast(scores)
    if not scores.numel():
        return scores, []
    if loops.usable(scores) and scores.dtype == torch.float32:
        return loops.softmax_lines(scores, float(temperature))
    weights, largest = softmax_and_largest(scores, float(temperature))
    return weights, not_finite(largest)


def softmax_and_largest(scores: Lines, temperature: float) -> tuple[Lines, Float[Tensor, "lines 1"]]:
    """Every line's softmax and largest score, at which nobody has looked."""
    largest = scores.amax(-1, keepdim=True)
    return divide_by_sums(((scores - largest) / temperature).exp_()), largest


def divide_by_sums(weights: Lines) -> Lines:
    """The same tensor, in which every line is divided by its sum, which is taken in float64."""
    weights /= weights.sum(-1, keepdim=True, dtype=torch.float64).to(weights.dtype)
    return weights


def not_finite(largest: Float[Tensor, "lines 1"]) -> list[int]:
    """The lines whose largest score is not finite."""
    return [line for line, (value,) in enumerate(largest.tolist()) if not math.isfinite(value)]
