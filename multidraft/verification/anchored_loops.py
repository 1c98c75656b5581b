"""The Lorenz rule for anchored drafts row by row, for CPUs: the numbers of `anchored_lorenz`, several times faster."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.drafting.anchored import Anchored
from multidraft.errors import AdviceError
from multidraft.numerics.loops import compiled, lines, same_shape, sum_of
from multidraft.numerics.precision import FULL, SPARE, least
from multidraft.verification.coupling_loops import over, scale_to_rejected
from multidraft.verification.lorenz_loops import Row, row_of
from multidraft.verification.outcome import Outcome


@dataclass(frozen=True)
class Coupled:
    """Where one token is drawn, or none: what `lorenz_loops.Row` is for several."""

    target: np.ndarray  # (vocabulary,)
    draft: np.ndarray  # (vocabulary,), what the draw comes from; zero where there is none

    def accept(self, draws: np.ndarray) -> np.ndarray:
        """Probability of emitting each draw, of which the first alone may hold a token."""
        accepted = np.zeros(len(draws))
        if draws[0] >= 0:
            accepted[0] = ratio(self.target[draws[0]], self.draft[draws[0]])
        return accepted

    def unclaimed(self) -> np.ndarray:
        """What of the target the draft cannot cover."""
        return np.maximum(self.target.astype(np.float64) - self.draft, 0.0)

    @property
    def record(self) -> float:
        """The sum of it."""
        return float(sum_of(self.unclaimed()))

    undrafted = 0.0  # is in the record


class Verified:
    """One row: what every position of its tuple may claim, and what is left of the target beside."""

    def __init__(self, target: np.ndarray, draft: np.ndarray, drafted: list[int], known: list[int], law: Anchored):
        n, lowest = law.drafts, least_of(draft.dtype)
        self.target, self.anchors, self.whole = target, drafted[:n], sum_of(target)
        draws, top_ups = drafted[n : 2 * n], [t for t in drafted[2 * n :] if t >= 0]
        others = without(draft, np.array(known), lowest) if max(known) >= 0 else draft
        self.plan = plan_of(target, others, known.count(-1), law.draft_probability)
        self.left: np.ndarray | None = None  # the target of what comes next, once it has been asked for
        of_draws, of_top_ups = self.plan.accept(np.array(draws)).tolist(), [0.0] * (law.width - 2 * n)
        self.alive = max(1 - sum(of_draws), 0.0)
        for j, token in enumerate(top_ups):
            conditional, left = without(draft, np.array(drafted[: 2 * n + j]), lowest), self.leftover()
            claim = ratio(left[token], conditional[token])
            self.left, of_top_ups[j] = over(left, conditional, 1.0), self.alive * claim
            self.alive *= 1 - claim
        anchored = any(anchor >= 0 for anchor in self.anchors)
        of_anchors = self.of_anchors() if anchored else [0.0] * n
        self.accept = of_anchors + of_draws + of_top_ups
        self.rest = max(self.alive * self.total() - sum(of_anchors), 0.0)

    def of_anchors(self) -> list[float]:
        """What each anchor may claim of what is left: the draws leave all of its target."""
        if self.left is not None:
            return [self.alive * float(self.left[anchor]) if anchor >= 0 else 0.0 for anchor in self.anchors]
        scale = self.alive / (self.missing + self.remainder + SPARE)
        return [scale * float(self.target[anchor]) if anchor >= 0 else 0.0 for anchor in self.anchors]

    @property
    def missing(self) -> float:
        """What the target lacks to one."""
        return 1 - self.whole if 1 - self.whole > FULL else 0.0

    @cached_property
    def remainder(self) -> float:
        """The sum of what the draws leave of the target."""
        return self.plan.record + self.plan.undrafted

    def total(self) -> float:
        """The sum of the target of what comes next."""
        if self.left is not None:
            return sum_of(self.left)
        return self.remainder / (self.missing + self.remainder) if self.missing > 0 else 1.0

    def leftover(self) -> np.ndarray:
        """The target of whatever comes after the draws, and after the top-ups so far."""
        if self.left is None:
            self.left = self.plan.unclaimed()
            scale_to_rejected(self.left, sum_of(self.left), self.target, 1.0, self.whole)
        return self.left

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
    same_shape("target and draft", target.shape, draft.shape)
    same_shape("drafted and the law's width", drafted.shape[-1:], (law.width,))
    if int(max(drafted.max(), known.max())) >= target.shape[-1]:
        raise AdviceError(f"drafted has token id {int(drafted.max())}; ids are below {target.shape[-1]}")
    tuples, anchors = (tokens.reshape(-1, tokens.shape[-1]).tolist() for tokens in (drafted, known))
    rows = [Verified(*row, law) for row in zip(lines(target), lines(draft), tuples, anchors, strict=True)]
    made = lambda parts, like: torch.from_numpy(np.array(parts)).to(target.dtype).view(like.shape)  # noqa: E731
    accept = made([row.accept for row in rows], drafted)
    residual = lambda: made([row.residual() for row in rows], target)  # noqa: E731
    return Outcome(accept, residual, drafted, lambda: made([row.rest for row in rows], target[..., 0]))


def ratio(target: np.floating, law: np.floating) -> float:
    """As `precision.ratio`."""
    return float(target > 0) if target >= law else float(target / law)


def plan_of(target: np.ndarray, draft: np.ndarray, count: int, a: float) -> Row | Coupled:
    """The schedule of the draws, or their coupling if there is one at most."""
    if count > 1:
        return row_of(target, draft, count, a)
    return Coupled(target, draft * a if count else np.zeros_like(draft))


def least_of(dtype: np.dtype) -> float:
    """As `precision.least`."""
    return least(torch.float64 if dtype == np.float64 else torch.float32)


@compiled
def without(draft, tokens, lowest):
    """As `law.without`, in float64: the distribution renormalised without some tokens and all below `lowest`."""
    left = draft.astype(np.float64)
    for token in tokens:
        if token >= 0:
            left[token] = 0.0
    for token in range(left.size):
        if left[token] < lowest:
            left[token] = 0.0
    total = sum_of(left)
    for token in range(left.size):
        left[token] /= total if total > 0 else 1.0
    return left
