"""Children of nodes drawn where the distributions are, without a wait: for trees whose shape is known beforehand."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.distributions import pick

Probs = Float[Tensor, "*nodes vocabulary"]
Children = Int[Tensor, "*nodes count"]


def draw_children(probs: Probs, count: int, law: str, generator: torch.Generator | None = None) -> Children:
    """`count` tokens for every node, drawn by `law`: without_replacement, iid or top; -1 where none is left.

    Without replacement, the tokens with the largest q_i / e_i come in this order, for independent e_i ~ Exp(1): the
    Gumbel top-k trick, whose law is that of drawing one after another (Kool et al., 2019). `iid` inverts the cumulative
    sum, `top` takes the most likely tokens, equal ones in any order. Raises AdviceError for another law.
    """
    if law == "iid":
        uniform = torch.rand((*probs.shape[:-1], count), dtype=torch.float64, device=probs.device, generator=generator)
        return pick(probs, uniform)
    if law == "without_replacement":
        noise = torch.rand(probs.shape, dtype=torch.float64, device=probs.device, generator=generator)
        return largest(probs.double().log() - (-torch.log1p(-noise)).log(), count)
    if law == "top":
        return largest(probs.log(), count)
    raise AdviceError(f"draws by the law {law!r} are not made here; choose without_replacement, iid or top")


def largest(scores: Float[Tensor, "*nodes vocabulary"], count: int) -> Children:
    """The tokens with the largest scores, -1 for minus infinity and where the vocabulary is smaller."""
    values, tokens = scores.topk(min(count, scores.shape[-1]), -1)
    tokens = tokens.masked_fill(values == -torch.inf, -1)
    return torch.nn.functional.pad(tokens, (0, count - tokens.shape[-1]), value=-1)
