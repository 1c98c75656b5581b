"""From lines of logits to the target's law: what the output is sampled from.

A line is one row's logits at one node. Lines come together, each with its own settings and its own prefix: the whole
sequence that ends at the node, needed only where the settings look back. What makes no distribution is a fault of its
line alone.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.sampling.from_logits import distributions
from multidraft.sampling.gate import Faults, in_full, softmax
from multidraft.sampling.processors import Prefixes, blamed, checked
from multidraft.sampling.settings import Sampling

TARGET = "the target model"


def target_laws(
    logits: Float[Tensor, "lines vocabulary"], settings: Sequence[Sampling], prefixes: Prefixes | None = None
) -> tuple[Float[Tensor, "lines vocabulary"], Faults]:
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


def log_laws(
    logits: Float[Tensor, "lines vocabulary"], settings: Sequence[Sampling], prefixes: Prefixes | None = None
) -> Float[Tensor, "lines vocabulary"]:
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


def laws_of(
    logits: Float[Tensor, "lines vocabulary"], own: Sampling, prefixes: Prefixes | None
) -> tuple[Float[Tensor, "lines vocabulary"], Faults]:
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
