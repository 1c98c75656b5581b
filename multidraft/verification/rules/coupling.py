"""Single-draft coupling: ordinary speculative sampling, and the building block of rules with several rounds."""

from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.precision import next_target, ratio


def acceptance(
    target: Float[Tensor, "*batch vocabulary"], law: Float[Tensor, "*batch vocabulary"], token: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """The probability of accepting `token`, drawn from `law`: min(1, t(x) / law(x)), in float64; 0 if it is empty."""
    index = token.clamp(min=0)[..., None]
    accept = ratio(target.gather(-1, index), law.gather(-1, index))[..., 0]
    return accept.double() * (token >= 0)


def remainder(
    target: Float[Tensor, "*batch vocabulary"], law: Float[Tensor, "*batch vocabulary"]
) -> Float[Tensor, "*batch vocabulary"]:
    """(t - law)_+, what of the target a draft from `law` cannot cover."""
    return (target - law).clamp_(min=0)


def residual(
    target: Float[Tensor, " vocabulary"], law: Float[Tensor, " vocabulary"], weight: float, accept: float
) -> Float[Tensor, " vocabulary"]:
    """Probability of emitting each token otherwise than as the one drawn from `law` and accepted with `accept`.

    The target is scaled to `weight`.
    """
    scaled = weight * target.double()
    return next_target(remainder(scaled, law.double()), scaled).mul_(1 - accept)


def couple(
    target: Float[Tensor, "*batch vocabulary"],
    law: Float[Tensor, "*batch vocabulary"],
    token: Int[Tensor, "*batch"],
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch vocabulary"]]:
    """The probability of accepting `token`, drawn from `law`, and the next target if it is not.

        b = min(1, t(x) / law(x)),   t <- (t - law)_+ / (1 - sum min(t, law))

    The denominator is (1 - sum t) + sum (t - law)_+, in positive terms. `law` sums to less than one where nothing may
    be drawn; an empty position (token -1) accepts nothing.

    Towards Optimal MDSD, eq. 5; Randomised Drafting, Algorithm 2.
    """
    return acceptance(target, law, token).to(target.dtype), next_target(remainder(target, law), target)
