"""The Lorenz rule for anchored drafts: three rules in a row, each with the target that the last hands on (ours)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.law import at_each, without
from multidraft.verification.laws.anchored import Anchored
from multidraft.verification.laws.iid import optimal_iid
from multidraft.verification.loops import paired
from multidraft.verification.outcome import Outcome
from multidraft.verification.rules.coupling import couple
from multidraft.verification.rules.lorenz import ScheduleOf, schedule, verify_draws
from multidraft.verification.rules.naive import naive


@paired("multidraft.verification.rules.anchored_loops")
def anchored_lorenz(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    law: Anchored,
) -> Outcome:
    """Optimal without top-ups: p(anchors) + alpha*(p, q', draws)."""
    return in_three_stages(target, draft, drafted, law, schedule)


def in_three_stages(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    law: Anchored,
    schedule_of: ScheduleOf,
) -> Outcome:
    """Draws by the Lorenz rule, top-ups by single-draft coupling, then a sample of what remains, accepted if an anchor.

    The draws come from q' (`draft` without the anchors), so the Lorenz rule leaves all of the target's mass on the
    anchors in its remainder, and that remainder is the same for every tuple: a new target for the next stage.
    """
    anchors, draws, top_ups = law.parts(drafted)
    known = anchors if law.draft_probability == 1 else law.anchor_tokens(draft)
    drawn_from, count = law.without_anchors(draft, known), (known < 0).sum(-1)
    of_draws, new_target = verify_draws(target, drawn_from, draws, count, law.draft_probability, schedule_of)
    alive = (1 - of_draws.sum(-1)).clamp(min=0)
    of_top_ups = torch.zeros_like(top_ups, dtype=torch.float64)
    for j in range(int((top_ups >= 0).sum(-1).max()) if top_ups.numel() else 0):
        conditional = law.conditional(draft, drafted[..., : 2 * law.drafts + j]).double()
        b, new_target = couple(new_target, conditional, top_ups[..., j])
        of_top_ups[..., j] = alive * b
        alive = alive * (1 - b)
    last = naive(alive[..., None] * new_target, draft, anchors, law)
    accept = torch.cat([last.accept, of_draws, of_top_ups], -1)
    return Outcome(accept.to(target.dtype), last.residual.to(target.dtype), drafted)


def acceptance_rate(
    target: Float[Tensor, "*batch vocabulary"], draft: Float[Tensor, "*batch vocabulary"], law: Anchored
) -> Float[Tensor, "*batch"] | None:
    """The rate p(anchors) + alpha*(p, q', draws); None with top-ups, or where nothing may be drafted."""
    if (law.top_up and law.drafts > 1) or law.draft_probability < 1:
        return None
    anchors = law.anchor_tokens(draft)
    of_draws = optimal_iid(target, without(draft, anchors), (anchors < 0).sum(-1))
    return at_each(target, anchors).sum(-1) + of_draws
