"""From lines of logits to distributions: temperature, top-k and top-p, and the target's law with all of its settings.

A line is one row's logits at one node, with its own settings and its own prefix, the whole sequence that ends at the
node, where they look back. What makes no distribution is a fault of its line alone.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from multidraft.errors import AdviceError
from multidraft.sampling.gate import Faults, Lines, in_full, not_finite, problem_of, softmax
from multidraft.sampling.processors import Prefixes, blamed, checked
from multidraft.sampling.settings import Sampling
from multidraft.verification.distributions import normalise
from multidraft.verification.precision import Rows

TARGET = "the target model"
HEAD = 1024  # tokens that hold top-p nearly always, and are found many times faster than all are sorted


def distribution(
    logits: Rows, temperature: float | int = 1.0, top_k: int | None = None, top_p: float | int | None = None
) -> Rows:
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
    logits: Lines, temperature: float | int = 1.0, top_k: int | None = None, top_p: float | int | None = None
) -> tuple[Lines, list[int]]:
    """Every line's `distribution`, and the lines that have none (theirs is undefined)."""
    logits = in_full(logits)
    if temperature == 0:
        best = logits.argmax(-1, keepdim=True)
        return torch.zeros_like(logits).scatter_(-1, best, 1.0), not_finite(logits.gather(-1, best))
    if top_k is not None and top_k < logits.shape[-1]:
        smallest = logits.topk(top_k, -1).values[..., -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    probabilities, bad = softmax(logits, temperature)
    return nucleus(probabilities, top_p) if top_p is not None and top_p < 1 else probabilities, bad


def nucleus(probabilities: Lines, top_p: float) -> Lines:
    """Keep the most likely tokens until they hold `top_p` (the one that crosses it included) and renormalise.

    Of equally likely tokens the last ones are kept, as transformers does where it sorts stably.
    """
    ordered = None
    if HEAD < probabilities.shape[-1]:
        ordered = probabilities.topk(HEAD, -1).values.cpu().numpy()
    if ordered is None or (ordered.sum(-1, dtype=np.float64) < top_p).any():
        ordered = -np.sort(-probabilities.cpu().numpy(), -1)
    count = ((ordered.cumsum(-1, dtype=np.float64) - ordered) < top_p).sum(-1, keepdims=True).clip(1)
    least = torch.from_numpy(np.take_along_axis(ordered, count - 1, -1)).to(probabilities.device)
    weights = probabilities * (probabilities >= least)
    spare = weights.count_nonzero(-1)[:, None] - torch.from_numpy(count).to(probabilities.device)
    if (spare > 0).any():
        equal = probabilities == least
        weights.masked_fill_(equal & (equal.cumsum(-1) <= spare), 0.0)
    return normalise(weights)


def target_laws(logits: Lines, settings: Sequence[Sampling], prefixes: Prefixes | None = None) -> tuple[Lines, Faults]:
    """The distributions that the output must have, and the faults of lines that have none (theirs is uniform).

    In float32, or float64 where the logits are; each sums to one within 1e-6.

    >>> laws, faults = target_laws(torch.tensor([[0.0, 0.0], [torch.nan, 0.0]]), [Sampling(), Sampling()])
    >>> laws[0], str(faults[1].at(row=1, position=7))
    (tensor([0.5000, 0.5000]), 'row 1, position 7: the target model gives token 0 the score nan; check its weights')
    """
    groups = alike(settings)
    if len(groups) == 1:
        return laws_of(logits, settings[0], prefixes)
    laws, faults = torch.empty_like(in_full(logits)), Faults()
    for own, lines in groups.items():
        laws[lines], wrong = laws_of(logits[lines], own, prefixes and [prefixes[line] for line in lines])
        faults |= {lines[line]: fault for line, fault in wrong.items()}
    return laws, faults


def log_laws(logits: Lines, settings: Sequence[Sampling], prefixes: Prefixes | None = None) -> Lines:
    """Logarithms of `target_laws`; where a temperature of 0 makes that a certainty, those at temperature 1."""
    warm = {own: replace(own, temperature=own.temperature or 1.0) for own in set(settings)}
    return target_laws(logits, [warm[own] for own in settings], prefixes)[0].log()


def alike(settings: Sequence[Sampling]) -> dict[Sampling, list[int]]:
    """The lines that have equal settings."""
    first = settings[0] if settings else None
    if first is not None and all(own is first for own in settings):
        return {first: list(range(len(settings)))}
    groups = defaultdict[Sampling, list[int]](list)
    for line, own in enumerate(settings):
        groups[own].append(line)
    return groups


def laws_of(logits: Lines, own: Sampling, prefixes: Prefixes | None) -> tuple[Lines, Faults]:
    """The distributions that the same settings make of some lines, uniform where there is a fault."""
    scores, faults = checked(own.before, logits, prefixes)
    laws, bad = distributions(scores, own.temperature, own.top_k, own.top_p)
    faults |= blamed(own.before, TARGET, logits, prefixes, {*bad} - {*faults})
    if faults:
        laws[[*faults]] = 1 / laws.shape[-1]
    if own.after is None:
        return laws, faults
    scores, failed = checked(own.after, laws.log(), prefixes)
    filtered, bad = softmax(scores)
    failed |= blamed(own.after, TARGET, laws.log(), prefixes, {*bad} - {*failed})
    filtered[[*faults, *failed]] = 1 / laws.shape[-1]
    return filtered, failed | faults
