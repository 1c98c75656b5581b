"""Acceptance of every scheme beside the optimum of its law, over recorded or random pairs of distributions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from multidraft.sampling.from_logits import distribution
from multidraft.verification.registry import entries, scheme
from multidraft.verification.scheme import Scheme
from multidraft_research.captures.recording import Recording

TUPLES = 16  # a pair, where acceptance has no formula: the average runs over pairs too


@dataclass(frozen=True)
class RateLine:
    """One number of the table with its standard error over positions (and tuples)."""

    scheme: str
    temperature: float
    drafts: int
    acceptance_rate: float
    standard_error: float
    optimal_acceptance_rate: float | None
    method: str


def random_pairs(count: int, vocabulary: int, seed: int) -> Recording:
    """Normal logits, and a draft that is a noisy copy: pairs of no model, for comparison.

    A spread of 3 gives the entropy of a language model's distribution (about 4 nats at 4,096 tokens), and noise of 1.2
    the acceptance of a small draft model (about 0.54 with one draft).
    """
    generator = torch.Generator().manual_seed(seed)
    target = 3 * torch.randn(count, vocabulary, generator=generator)
    return Recording(target, target + 1.2 * torch.randn(count, vocabulary, generator=generator))


def cases(temperatures: list[float], drafts: list[int], schemes: Sequence[str] = ()) -> list[tuple[str, float, int]]:
    """These schemes, or else every one, with every temperature and number of drafts that it takes."""
    # one recorded draft model cannot stand for several; rules of small vocabularies reach the optimum, shown anyway
    laws = {name: type(scheme(name).law) for name in schemes}
    laws = laws or {name: entry.law for name, entry in entries().items() if not entry.small}
    names = [name for name, law in laws.items() if not law.per_draft_distributions]
    return [(n, t, k) for t in temperatures for k in drafts for n in names if laws[n].fixed_drafts in (None, k)]


def measure(recording: Recording, jobs: list[tuple[str, float, int]], seed: int = 0) -> Iterator[RateLine]:
    """The lines of the table, one after another."""
    for name, temperature, drafts in jobs:
        target, draft = (distribution(x.double(), temperature) for x in (recording.target, recording.draft))
        generator = torch.Generator().manual_seed(seed)
        yield measure_scheme(name, scheme(name, drafts=drafts), temperature, target, draft, generator)


def measure_scheme(
    name: str, s: Scheme, temperature: float, target: Tensor, draft: Tensor, generator: torch.Generator
) -> RateLine:
    """Averages over positions."""
    rate, method = s.acceptance(target, draft, samples=TUPLES, generator=generator)
    error = float(rate.double().std() / len(target) ** 0.5)
    optimum = None if s.law.optimal is None else float(s.optimal_acceptance_rate(target, draft).mean())
    return RateLine(name, temperature, s.drafts, float(rate.mean()), error, optimum, method)
