"""What is compiled when it is first used is used once before any clock runs."""

from functools import cache, partial

import torch

from multidraft.catalogue import Scheme
from multidraft.decoding.shapes import Shape
from multidraft.drafting.levels import children_of_level, draw_level
from multidraft.numerics import loops
from multidraft.numerics.distributions import pick
from multidraft.verification.coupling import residual


def warm_up(scheme: Scheme, shape: Shape, device: torch.device) -> None:
    """Draw and verify once with every number of drafts that a node may have, where that runs as loops."""
    if loops.HAS_NUMBA and device.type == "cpu" and not scheme.entry.small:  # solvers have no loops
        for count in shape.counts_drawn:
            use_once(scheme.with_drafts(count))


@cache
def use_once(scheme: Scheme) -> None:
    """All loops that a step may call, on a few tokens: with duplicates and without, with an anchor and without."""
    numbers = partial(torch.zeros, dtype=torch.float64)
    for first in (0.0, 2.0):
        target = torch.tensor([first] + [0.0] * (2 * scheme.drafts)).softmax(-1)
        pick(residual(target, target, 1.0, 0.5), numbers(1))
        draft = target.expand(scheme.drafts, -1) if scheme.law.several else target
        drafted = draw_level(scheme.law, (scheme.drafts,), draft[None, None], numbers(1, scheme.law.numbers))
        children_of_level(scheme.law, (scheme.drafts,), drafted)
        _ = scheme.verify(target, draft, drafted[0, 0]).residual
