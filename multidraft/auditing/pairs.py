"""Target and draft distributions to audit with: those that break things, random ones, and large ones.

All are plausible: a ban, a penalty, a fine-tune of the same model, a temperature.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.distributions import check_distribution
from multidraft.verification.law import Law

NamedPair = tuple[str, Tensor, Tensor]  # a name for messages, target, draft

ADVERSARIAL_PAIRS = {
    "zeros": ([0.5, 0.0, 0.3, 0.2], [0.0, 0.4, 0.6, 0.0]),
    "ties": ([0.25, 0.25, 0.25, 0.25], [0.4, 0.4, 0.1, 0.1]),
    "equal": ([0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]),
    "disjoint supports": ([0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.7, 0.3]),
    "one-hot target": ([0.0, 1.0, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4]),
    "one-hot draft": ([0.1, 0.2, 0.3, 0.4], [0.0, 1.0, 0.0, 0.0]),
    "one-hot both": ([0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]),
    "one-hot apart": ([0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]),
    "near-equal": ([0.1 + 1e-13, 0.2 - 1e-13, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]),
    "covered by three drafts": ([1 / 26, 7 / 26, 12 / 26, 6 / 26], [3 / 28, 6 / 28, 12 / 28, 7 / 28]),
    "subnormal": ([1e-310, 0.5, 0.5, 0.0], [0.5, 1e-310, 0.2, 0.3]),
    "tiny draft": ([0.97, 0.01, 0.01, 0.01], [1e-12, 0.4, 0.3, 0.3 - 1e-12]),
    "peaked": ([0.997, 0.001, 0.001, 0.001], [0.9, 0.05, 0.03, 0.02]),
    "the example of docs/lossless.md": ([0.5, 0.3, 0.2], [0.6, 0.3, 0.1]),
}
SPOILED_WEIGHTS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {  # weights, from a random pair
    "sharper": lambda p, q: (p**4, q**2),
    "nearly the same": lambda p, q: (p, p * (1 + 1e-10 * q)),
    "of few ratios": lambda p, q: ((6 * p).ceil(), (6 * q).ceil()),
    "pushed down": lambda p, q: (p.where(p < p.max(), 1e-17), p * (1 + 1e-6 * q)),
    "banned": lambda p, q: (p * (q < q.max()), q * (q > q.min())),
    "vanishing": lambda p, q: (p.where(p > p.min(), 5e-324), q.where(q < q.max(), 1e-300)),
}
RANDOM, SPOILT = 30, 3  # random pairs, and as many more that are spoilt in each way
DRAFTS = {"near": 0.5, "far": 2.0}  # how much the logits of a large draft distribution vary
MISSING_SHARE = 0.1  # of a large vocabulary's rarer tokens, in the target and in the draft


def small_pairs(law: Law, seed: int) -> list[NamedPair]:
    """All adversarial pairs, random ones of 2 to 5 tokens, and some of 3 to 5 that are spoilt; in float64."""
    pairs = [(name, double(target), double(draft)) for name, (target, draft) in ADVERSARIAL_PAIRS.items()]
    generator = torch.Generator().manual_seed(seed)
    pairs += [(f"random {i}", *random_pair(2 + i % 4, i % 3 == 0, generator)) for i in range(RANDOM)]
    for kind, spoil in SPOILED_WEIGHTS.items():
        for i in range(SPOILT):
            target, draft = spoil(*random_pair(3 + i, False, generator))
            pairs.append((f"{kind} {i}", target / target.sum(), draft / draft.sum()))
    return [(name, target, drafting(law, draft)) for name, target, draft in pairs]


def random_pair(vocabulary: int, zeros: bool, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two distributions from flat to peaked, with zeros at random places."""
    exponent, base, kept = torch.rand(3, 2, vocabulary, generator=generator, dtype=torch.float64)
    weights = base ** (4 * exponent)
    if zeros:
        weights *= kept > 0.3
        weights[:, 0] += 0.1  # so that something is left
    target, draft = weights / weights.sum(-1, keepdim=True)
    return target, draft


def given_pairs(law: Law, pairs: Iterable[Sequence[Any]]) -> list[NamedPair]:
    """The user's own pairs, as sequences of numbers or tensors."""
    result = []
    for index, (target, draft) in enumerate(pairs):
        p, q = double(target), double(draft)
        check_distribution(p, f"target of pair {index}", total_at_most_one=True)
        check_distribution(q, f"draft of pair {index}")
        if p.ndim != 1 or q.shape[-1] != len(p):
            raise AdviceError(
                f"pair {index} has shapes {tuple(p.shape)} and {tuple(q.shape)}; give one target (vocabulary,) and "
                "its draft"
            )
        law.batch(q)  # refuses what is no draft distribution of this law
        result.append((f"pair {index}", p, q))
    if not result:
        raise AdviceError("there are no pairs to audit with; give at least one (target, draft), or leave pairs out")
    return result


def large_pair(law: Law, vocabulary: int, kind: str, seed: int) -> tuple[Float[Tensor, " vocabulary"], Tensor]:
    """Distributions as of language models, in float32: heavy tails, a draft sure of itself, tokens missing in each."""
    generator = torch.Generator().manual_seed(seed)
    noise, other, kept, also = torch.randn(4, vocabulary, generator=generator, dtype=torch.float64)
    noise[0] = other[0] = 0  # the two agree on the likeliest token
    common = -1.6 * torch.arange(1, vocabulary + 1).log()
    rare, never = torch.arange(vocabulary) >= min(8, vocabulary // 2), torch.special.ndtri(torch.tensor(MISSING_SHARE))
    place = torch.randperm(vocabulary, generator=generator)
    pair: list[Tensor] = []
    for logits, mark in ((common + 0.5 * noise, kept), (common + DRAFTS[kind] * other, also)):
        logits[0] += len(pair)  # the draft is surer of it
        weights = logits.softmax(-1).masked_fill(rare & (mark < never), 0.0)
        pair.append((weights / weights.sum())[place].float())
    return pair[0], drafting(law, pair[1])


def double(values: object) -> Tensor:
    """Numbers as a float64 tensor."""
    return torch.as_tensor(values, dtype=torch.float64)


def drafting(law: Law, draft: Float[Tensor, "*batch vocabulary"]) -> Tensor:
    """The draft distribution, or as many (shifted by a token each) as the law takes."""
    return torch.stack([draft.roll(j, -1) for j in range(law.drafts)], -2) if law.per_draft_distributions else draft
