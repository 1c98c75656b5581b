"""The Lorenz rule for anchored drafts: three rules in a row, each against what the one before left over (ours)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.drafting.anchored import Anchored
from multidraft.drafting.law import without
from multidraft.verification.lorenz import accept_draws, schedule
from multidraft.verification.naive import at_each, naive
from multidraft.verification.outcome import Outcome
from multidraft.verification.recursive_rejection import couple


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
    plan = schedule(target, without(draft, known), (known < 0).sum(-1), law.draft_probability)
    of_draws = accept_draws(plan, draws)
    alive, left, of_top_ups = 1 - of_draws.sum(-1), plan.leftover(), torch.zeros_like(top_ups, dtype=torch.float64)
    for j in range(int((top_ups >= 0).sum(-1).max()) if top_ups.numel() else 0):
        conditional = law.conditional(draft, drafted[..., : 2 * law.drafts + j])
        b, left = couple(left, conditional.double(), top_ups[..., j])
        of_top_ups[..., j] = alive * b
        alive = alive * (1 - b)
    alive = alive.clamp(min=0)
    of_anchors = alive[..., None] * at_each(left, anchors)
    residual = lambda: naive(alive[..., None] * left, draft, anchors, law).residual.to(target.dtype)  # noqa: E731
    accept = torch.cat([of_anchors, of_draws, of_top_ups], -1)
    rest = (alive * left.sum(-1) - of_anchors.sum(-1)).clamp(min=0)
    return Outcome(accept.to(target.dtype), residual, drafted, rest.to(target.dtype))
