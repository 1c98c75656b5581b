"""The shapes of tensors and the floating-point facts that laws, rules and optima rely on.

A row is a place where something is drafted.

**Sums.** Whatever is normalised is divided by a sum taken in float64, so that a float32 law over 262,144 tokens sums to
one within 1e-6; PyTorch's float32 `softmax` does not (1e-4 on a CPU). A target that lacks less than `FULL` to one is
*full*: every tuple of drafts emits a token. What another one lacks is the probability of failing. The deferred walk
never asks for a weight between the two.

**Differences.** `t - q` is right to 1e-16 of the larger, so a difference of two sums may be rounding and nothing else.
What is handed on after a rejection is therefore divided by the sum of its own positive terms. Where that is zero the
target itself is handed on: `SPARE` of it is in every remainder. That happens to a tuple with a probability of the order
of 1e-16 at most, and emits nothing that the target does not.

**Quotients.** `t / q` may overflow where `q` is subnormal: `ratio` compares before it divides.

**Small masses.** Sums lose subnormals beside large terms. A draft mass below `least` counts as none once larger ones
are gone: a law does not draw it, and no optimum counts on it.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

Rows = Float[Tensor, "*batch vocabulary"]  # a number for every token: a distribution, or a part of one
Draft = Float[Tensor, "*drafting vocabulary"]  # as `Rows`, or (*batch, drafts, vocabulary) for the law `distinct`
Tuples = Int[Tensor, "*batch width"]  # the drafted tokens, -1 where a position is empty
Past = Int[Tensor, "*batch past"]  # the tokens drafted so far
Tokens = Int[Tensor, "*batch some"]
Rates = Float[Tensor, "*batch"]

MAX_MISSING_MASS = 1e-5  # a target that lacks less than this to one lacks nothing
NEGLIGIBLE_MASS = 1e-30  # too little to be seen in any remainder above rounding
FACTOR_BELOW_ONE = 1 - 2.0**-52  # times any sum it stays below that sum, however the product is rounded
TIE_FACTOR = 1 - 1e-9  # times one of two equal sums it stays below the other, however both are rounded
MIN_DRAFT_PROBABILITY = 1e-300  # a draft probability below it counts as zero: p/q must not overflow
NEVER_ZERO = 1e-300  # added to a divisor that is zero where the dividend is
SMALLEST_NORMAL = torch.finfo(torch.float64).tiny


def least(dtype: torch.dtype) -> float:
    """The smallest mass that counts beside larger ones: its inverse is finite, also times the size of a vocabulary."""
    return 1e-290 if dtype == torch.float64 else 2.0**-126


def missing(target: Rows) -> Rates:
    """What a target lacks to one, in float64; exactly 0 where it is full."""
    lacks = 1 - target.sum(-1, dtype=torch.float64)
    return torch.where(lacks > MAX_MISSING_MASS, lacks, 0.0)


def ratio(target: Float[Tensor, "*any"], draft: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """min(1, target / draft), which never overflows; 0 where both are zero."""
    return torch.where(target >= draft, (target > 0).to(target.dtype), target / draft)


def next_target(remainder: Rows, target: Rows) -> Rows:
    """The target of whatever comes after a rejection: R / (missing + sum R), of which R is overwritten.

    It sums to one where the target is full, and to less where it is not; R is what remains of it.

    >>> next_target(torch.zeros(2), torch.tensor([0.25, 0.75]))
    tensor([0.2500, 0.7500])
    """
    remainder.add_(target, alpha=NEGLIGIBLE_MASS)
    rejected = missing(target) + remainder.sum(-1, dtype=torch.float64)
    return remainder / rejected.to(remainder.dtype)[..., None]  # positive: something is missing, or something is spare
