"""What is compiled when it is first used is used once before any clock runs."""

from functools import cache, partial

import torch

from multidraft.catalogue import Scheme
from multidraft.decoding.shapes import Shape
from multidraft.drafting.levels import draw_level
from multidraft.drafting.places import Drawing
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
        tokens = torch.full((1, 1 + scheme.drafts), -1)
        drafted = torch.full((1, 1 + scheme.drafts, scheme.law.width), -1)
        uniform = numbers(1, scheme.law.numbers)
        draw_level(Drawing([0], (scheme.drafts,), [1]), scheme.law, draft[None, None], uniform, tokens, drafted)
        _ = scheme.verify(target, draft, drafted[0, 0]).residual
