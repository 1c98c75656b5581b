"""Single-draft coupling: ordinary speculative sampling, and the building block of rules with several rounds."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft import loops


def claim(
    target: Float[Tensor, "*batch vocabulary"], law: Float[Tensor, "*batch vocabulary"], token: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """The probability of accepting `token`, drawn from `law`: min(1, t(x) / law(x)), in float64."""
    index = token.clamp(min=0)[..., None]
    q = law.gather(-1, index).clamp_(min=torch.finfo(law.dtype).tiny)
    ratio = target.gather(-1, index).div_(q).clamp_(max=1)[..., 0]
    return ratio.double() * (token >= 0)


def overlap(
    target: Float[Tensor, "*batch vocabulary"], law: Float[Tensor, "*batch vocabulary"], total: float = 1.0
) -> tuple[Float[Tensor, "*batch vocabulary"], Float[Tensor, "*batch"]]:
    """What of the target the law cannot cover, and the probability of rejection.

        (t - law)_+,   1 - sum min(t, law)

    `law` sums to `total`, the probability that a token is drawn at all, or to nothing where the position is always
    empty. Sums are of positive terms, without cancellation, and rounding never lets the first exceed the second.
    """
    common = torch.minimum(target, law)
    over = target - common
    rejected = (law - common).sum(-1) + (1 - total * (law.sum(-1) > 0).to(law.dtype))
    return over, torch.maximum(rejected, over.sum(-1)).clamp(min=torch.finfo(law.dtype).tiny)


def residual(
    target: Float[Tensor, " vocabulary"], law: Float[Tensor, " vocabulary"], weight: float, accept: float
) -> Float[Tensor, " vocabulary"]:
    """Probability of emitting each token otherwise than as the one that was drawn from `law` and claims `accept`.

    The target is scaled to `weight`.
    """
    if loops.usable(target, law):
        return loops.residual(target, law, weight, accept)
    over, rejected = overlap(weight * target.double(), law.double())
    return over.mul_((1 - accept) / float(rejected))


def couple(
    target: Float[Tensor, "*batch vocabulary"],
    law: Float[Tensor, "*batch vocabulary"],
    token: Int[Tensor, "*batch"],
    total: float = 1.0,
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch vocabulary"]]:
    """The probability of accepting `token`, drawn from `law`, and the target left if it is not.

        b = min(1, t(x) / law(x)),   t <- (t - law)_+ / (1 - sum min(t, law))

    An empty position (token -1) accepts nothing (Towards Optimal MDSD, eq. 5; Randomised Drafting, Algorithm 2).
    """
    over, rejected = overlap(target, law, total)
    return claim(target, law, token).to(target.dtype), over / rejected[..., None]
