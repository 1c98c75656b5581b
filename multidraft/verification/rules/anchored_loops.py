"""The Lorenz rule for anchored drafts as compiled loops, for CPUs, several times faster than tensors."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.laws.anchored import Anchored
from multidraft.verification.loops import compiled, forget, lines, same_shape, sum_of
from multidraft.verification.outcome import Outcome
from multidraft.verification.precision import least
from multidraft.verification.rules.lorenz_loops import Node, Single, acceptance, next_target, nodes


def anchored_lorenz(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    law: Anchored,
) -> Outcome:
    """The outcome of the Lorenz rule for anchored drafts, row by row."""
    same_shape("target and draft", target.shape, draft.shape)
    same_shape("drafted and the law's width", drafted.shape, (*draft.shape[:-1], law.width))
    p, q, tuples, n, lowest = lines(target), lines(draft), lines(drafted), law.drafts, least(draft.dtype)
    if tuples.size and (largest := tuples.max()) >= p.shape[-1]:
        raise AdviceError(f"drafted has token id {largest}; ids are below {p.shape[-1]}")
    known = tuples[:, :n] if law.draft_probability == 1 else lines(law.anchor_tokens(draft))
    drawn_from = (
        without(row, anchors, lowest) if law.has_anchors else row for row, anchors in zip(q, known, strict=True)
    )
    of_draws = nodes(zip(p, drawn_from, (known < 0).sum(-1).tolist(), strict=True), law.draft_probability)
    found = [in_three_stages(*row, n, lowest) for row in zip(of_draws, q, tuples, strict=True)]
    accept, residual = (torch.from_numpy(np.stack(part)).to(target.dtype) for part in zip(*found, strict=True))
    return Outcome(accept.view(drafted.shape), residual.view(target.shape), drafted)


def in_three_stages(
    node: Node | Single, draft: np.ndarray, drafted: np.ndarray, n: int, lowest: float
) -> tuple[np.ndarray, np.ndarray]:
    """What is accepted at every position of a tuple, and the residual: draws, then top-ups, then anchors."""
    accepted, after = np.zeros(len(drafted)), node.after
    accepted[n : 2 * n] = node.accept(drafted[n : 2 * n])
    alive = max(1 - accepted.sum(), 0.0)
    for j in range(2 * n, 2 * n + int((drafted[2 * n :] >= 0).sum())):
        law = without(draft, drafted[:j], lowest)
        b = acceptance(after, law, drafted[j])
        accepted[j], alive, after = alive * b, alive * (1 - b), next_target(after, law)
    residual, anchors = alive * after, drafted[:n][drafted[:n] >= 0]
    accepted[: len(anchors)] = residual[anchors]
    residual[anchors] = 0.0
    return accepted, residual


@compiled
def without(draft, tokens, lowest):
    """The distribution in float64, renormalised without some tokens and without all below `lowest`."""
    kept = draft.astype(np.float64)
    forget(kept, tokens, lowest)
    total = sum_of(kept)
    return kept / total if total > 0 else kept
