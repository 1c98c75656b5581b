"""The Lorenz rule for anchored drafts: three rules in a row, each with the target that the last hands on (ours)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.machine.device import waits
from multidraft.verification.law import at_each
from multidraft.verification.laws.anchored import Anchored
from multidraft.verification.loops import paired
from multidraft.verification.outcome import Outcome
from multidraft.verification.rules.coupling import couple
from multidraft.verification.rules.lorenz import ScheduleOf, drawable_schedule, verify_draws
from multidraft.verification.rules.naive import naive


@paired("multidraft.verification.rules.anchored_loops")
def anchored_lorenz(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    law: Anchored,
) -> Outcome:
    """Optimal without top-ups: p(anchors) + alpha*(p, q', draws)."""
    return in_three_stages(target, draft, drafted, law)


def in_three_stages(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    law: Anchored,
    schedule_of: ScheduleOf = drawable_schedule,
) -> Outcome:
    """Draws by the Lorenz rule, top-ups by single-draft coupling, then a sample of what remains, accepted if an anchor.

    The draws come from q' (`draft` without the anchors), so the Lorenz rule leaves all of the target's mass on the
    anchors in its remainder, and that remainder is the same for every tuple: a new target for the next stage.
    """
    anchors, draws, top_ups = law.parts(drafted)
    known = anchors if law.draft_probability == 1 else law.anchor_tokens(draft)
    drawn_from, count = law.without_anchors(draft, known), (known < 0).sum(-1)
    verified = verify_draws(target, drawn_from, draws, count, law.draft_probability, schedule_of)
    alive, new_target = (1 - verified.accept.sum(-1)).clamp(min=0), None
    of_top_ups = torch.zeros_like(top_ups, dtype=torch.float64)
    for j in range(most_filled(top_ups)):
        conditional = law.conditional(draft, drafted[..., : 2 * law.drafts + j]).double()
        new_target = verified.next_target() if new_target is None else new_target
        b, new_target = couple(new_target, conditional, top_ups[..., j])
        of_top_ups[..., j] = alive * b
        alive = alive * (1 - b)
    if new_target is None:  # only its anchors and its sum are needed at once: the draws take nothing of the anchors
        of_anchors, total = at_each(target, anchors) / verified.rejected[..., None], verified.next_mass
    else:
        of_anchors, total = at_each(new_target, anchors), new_target.sum(-1)

    def residual() -> Tensor:
        last = verified.next_target() if new_target is None else new_target
        return naive(alive[..., None] * last, draft, anchors, law).residual.to(target.dtype)

    accept = torch.cat([alive[..., None] * of_anchors, verified.accept, of_top_ups], -1)
    residual_mass = (alive * (total - of_anchors.sum(-1))).clamp(min=0)
    return Outcome(accept.to(target.dtype), residual, drafted, residual_mass.to(target.dtype))


def most_filled(positions: Int[Tensor, "*batch some"]) -> int:
    """The largest number of positions in a row that hold a token, as far as can be known without waiting."""
    if waits(positions):
        return positions.shape[-1]
    return int((positions >= 0).sum(-1).max()) if positions.numel() else 0
