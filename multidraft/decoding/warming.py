"""What is compiled when it is first used is used once before any clock runs."""

from functools import cache

import torch

from multidraft.catalogue import Scheme
from multidraft.decoding.tree import Tree
from multidraft.numerics import loops
from multidraft.numerics.distributions import pick
from multidraft.verification.coupling import residual


def warm_up(scheme: Scheme, tree: Tree, device: torch.device) -> None:
    """Draw and verify once with every number of drafts in the tree, where that runs as loops."""
    if loops.HAS_NUMBA and device.type == "cpu" and not scheme.entry.small:  # solvers have no loops
        for count in set(tree.drafts) - {0}:
            use_once(scheme.with_drafts(count))


@cache
def use_once(scheme: Scheme) -> None:
    """All loops that a step may call, on a few tokens: with duplicates and without, with an anchor and without."""
    for first in (0.0, 2.0):
        target = torch.tensor([first] + [0.0] * (2 * scheme.drafts)).softmax(-1)
        pick(residual(target, target, 1.0, 0.5), torch.zeros(1, dtype=torch.float64))
        draft = target.expand(scheme.drafts, -1) if scheme.law.several else target
        drafted = scheme.law.draw(draft, torch.zeros(scheme.law.numbers, dtype=torch.float64))
        _ = scheme.verify(target, draft, drafted).residual
