"""The Lorenz rule for anchored drafts row by row, for CPUs: the numbers of `anchored_lorenz`, several times faster."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.drafting.anchored import Anchored
from multidraft.loops import SMALLEST, compiled, lines, over, sum_of
from multidraft.verification.lorenz_loops import Row, row_of
from multidraft.verification.outcome import Outcome


@dataclass(frozen=True)
class Coupled:
    """Where one token is drawn, or none: what `lorenz_loops.Row` is for several."""

    target: np.ndarray  # (vocabulary,)
    draft: np.ndarray  # (vocabulary,), what the draw comes from; zero where there is none
    optimum: float

    def accept(self, draws: np.ndarray) -> np.ndarray:
        """Probability of emitting each draw, of which the first alone may hold a token."""
        accepted = np.zeros(len(draws))
        if draws[0] >= 0:
            accepted[0] = ratio(self.target[draws[0]], self.draft[draws[0]])
        return accepted

    def unclaimed(self) -> np.ndarray:
        """What of the target the draft cannot cover."""
        return np.maximum(self.target - self.draft, 0.0)


class Verified:
    """One row: what every position of its tuple may claim, and what is left of the target beside."""

    def __init__(self, target: np.ndarray, draft: np.ndarray, drafted: list[int], known: list[int], law: Anchored):
        n, tiny = law.drafts, np.finfo(draft.dtype).tiny
        self.target, self.anchors = target, drafted[:n]
        draws, top_ups = drafted[n : 2 * n], [t for t in drafted[2 * n :] if t >= 0]
        others = without(draft, np.array(known), tiny) if max(known) >= 0 else draft
        self.plan = plan_of(target, others, known.count(-1), law.draft_probability)
        self.missing = max(sum_of(target) - self.plan.optimum, 0.0)
        self.rejected = max(1 - self.plan.optimum, self.missing, SMALLEST)
        self.left: np.ndarray | None = None  # for the sample that may be an anchor; until a top-up R / rejected
        of_draws, of_top_ups = self.plan.accept(np.array(draws)).tolist(), [0.0] * (law.width - 2 * n)
        self.alive = max(1 - sum(of_draws), 0.0)
        for j, token in enumerate(top_ups):
            conditional, left = without(draft, np.array(drafted[: 2 * n + j]), tiny), self.leftover()
            claim = ratio(left[token], conditional[token])
            self.left, of_top_ups[j] = over(left, conditional, 1.0, 0.0), self.alive * claim
            self.alive *= 1 - claim
        of_anchors = [self.alive * self.left_of(anchor) if anchor >= 0 else 0.0 for anchor in self.anchors]
        total = self.missing / self.rejected if self.left is None else sum_of(self.left)
        self.accept = of_anchors + of_draws + of_top_ups
        self.rest = max(self.alive * total - sum(of_anchors), 0.0)

    def left_of(self, anchor: int) -> float:
        """What is left of an anchor's target; the draws leave it whole."""
        return float(self.target[anchor]) / self.rejected if self.left is None else float(self.left[anchor])

    def leftover(self) -> np.ndarray:
        """The target of whatever comes after the draws, and after the top-ups so far."""
        return self.plan.unclaimed() / self.rejected if self.left is None else self.left

    def residual(self) -> np.ndarray:
        """Probability of emitting each token otherwise than as a draft."""
        residual = self.alive * self.leftover()
        residual[[anchor for anchor in self.anchors if anchor >= 0]] = 0.0
        return residual


def verify(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    known: Int[Tensor, "*batch anchors"],
    law: Anchored,
) -> Outcome:
    """The law of the emitted token; `known` are the anchors, drafted or not."""
    tuples, anchors = (tokens.reshape(-1, tokens.shape[-1]).tolist() for tokens in (drafted, known))
    rows = [Verified(*row, law) for row in zip(lines(target), lines(draft), tuples, anchors, strict=True)]
    made = lambda parts, like: torch.from_numpy(np.array(parts)).to(target.dtype).view(like.shape)  # noqa: E731
    accept = made([row.accept for row in rows], drafted)
    residual = lambda: made([row.residual() for row in rows], target)  # noqa: E731
    return Outcome(accept, residual, drafted, lambda: made([row.rest for row in rows], target[..., 0]))


def ratio(target: np.floating, law: np.floating) -> float:
    """min(1, t / law), which never overflows."""
    return 1.0 if target >= law else float(target / law)


def plan_of(target: np.ndarray, draft: np.ndarray, count: int, a: float) -> Row | Coupled:
    """The schedule of the draws, or their coupling if there is one at most."""
    if count > 1:
        return row_of(target, draft, count, a)
    law = draft * a if count else np.zeros_like(draft)
    return Coupled(target, law, float(common(target, law)))


@compiled
def common(target, law):
    """sum min(t, law)."""
    total = 0.0
    for token in range(target.size):
        total += min(np.float64(target[token]), np.float64(law[token]))
    return total


@compiled
def without(draft, tokens, tiny):
    """As `law.without`, in float64: the distribution renormalised without some tokens, zero below a total of `tiny`."""
    left = draft.astype(np.float64)
    for token in tokens:
        if token >= 0:
            left[token] = 0.0
    total = sum_of(left)
    if total < tiny:
        return np.zeros_like(left)
    for token in range(left.size):
        left[token] /= total
    return left
