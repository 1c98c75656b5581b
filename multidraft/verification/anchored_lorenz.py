"""The Lorenz rule for anchored drafts: three rules in a row, each against what the one before left over (ours)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.drafting.anchored import Anchored
from multidraft.drafting.law import at_each
from multidraft.numerics import loops
from multidraft.verification import anchored_loops
from multidraft.verification.coupling import couple
from multidraft.verification.lorenz import verify_draws
from multidraft.verification.naive import naive
from multidraft.verification.outcome import Outcome


def anchored_lorenz(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    law: Anchored,
) -> Outcome:
    """Draws by the Lorenz rule, top-ups by single-draft coupling, then a sample of what is left, accepted if an anchor.

    The draws come from q' (`draft` without the anchors), so the Lorenz rule leaves all of the target's mass on the
    anchors in its residual, and that residual is the same for every tuple: a new target for the next stage. Without
    top-ups this is optimal: p(anchors) + alpha*(p, q', draws).
    """
    anchors, draws, top_ups = law.parts(drafted)
    known = anchors if law.draft_probability == 1 else law.anchor_tokens(draft)
    if loops.usable(target, draft):
        return anchored_loops.verify(target, draft, drafted, known, law)
    verified = verify_draws(target, law.others(draft, known), draws, (known < 0).sum(-1), law.draft_probability)
    alive, left = (1 - verified.accept.sum(-1)).clamp(min=0), None
    of_top_ups = torch.zeros_like(top_ups, dtype=torch.float64)
    for j in range(most_filled(top_ups)):
        conditional = law.conditional(draft, drafted[..., : 2 * law.drafts + j]).double()
        b, left = couple(verified.leftover() if left is None else left, conditional, top_ups[..., j])
        of_top_ups[..., j] = alive * b
        alive = alive * (1 - b)
    # Without top-ups only anchors and the sum of what is left are needed at once: p(anchors) is left whole.
    claims = at_each(target, anchors) / verified.rejected[..., None] if left is None else at_each(left, anchors)
    total = verified.left if left is None else left.sum(-1)

    def residual() -> Tensor:
        remaining = verified.leftover() if left is None else left
        return naive(alive[..., None] * remaining, draft, anchors, law).residual.to(target.dtype)

    accept = torch.cat([alive[..., None] * claims, verified.accept, of_top_ups], -1)
    rest = (alive * (total - claims.sum(-1))).clamp(min=0)
    return Outcome(accept.to(target.dtype), residual, drafted, rest.to(target.dtype))


def most_filled(positions: Int[Tensor, "*batch some"]) -> int:
    """The largest number of positions in a row that hold a token."""
    return int((positions >= 0).sum(-1).max()) if positions.numel() else 0
