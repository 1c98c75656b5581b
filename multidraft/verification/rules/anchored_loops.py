"""The Lorenz rule for anchored drafts row by row, for CPUs: the numbers of `anchored_lorenz`, several times faster."""

from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.laws.anchored import Anchored
from multidraft.verification.level_loops import forget, least_of
from multidraft.verification.loops import compiled, lines, same_shape, sum_of
from multidraft.verification.outcome import Outcome
from multidraft.verification.precision import FULL, SPARE
from multidraft.verification.rules.coupling_loops import Coupled, acceptance, hand_on, next_target
from multidraft.verification.rules.lorenz_loops import Row, row_of


class Verified:
    """One row: what every position of its tuple may claim, and the target of what comes next."""

    def __init__(self, target: np.ndarray, draft: np.ndarray, drafted: list[int], known: list[int], law: Anchored):
        n, lowest = law.drafts, least_of(draft.dtype)
        self.target, self.anchors, self.whole = target, drafted[:n], sum_of(target)
        draws, top_ups = drafted[n : 2 * n], [t for t in drafted[2 * n :] if t >= 0]
        unanchored = without(draft, np.array(known), lowest) if max(known) >= 0 else draft
        self.plan = plan_of(target, unanchored, known.count(-1), law.draft_probability)
        self.next: np.ndarray | None = None  # the target of what comes next, once it has been asked for
        of_draws, of_top_ups = self.plan.accept(np.array(draws)).tolist(), [0.0] * (law.width - 2 * n)
        self.alive = max(1 - sum(of_draws), 0.0)
        for j, token in enumerate(top_ups):
            before, conditional = self.next_target(), without(draft, np.array(drafted[: 2 * n + j]), lowest)
            b = acceptance(before, conditional, token)
            self.next, of_top_ups[j] = next_target(before, conditional, 1.0), self.alive * b
            self.alive *= 1 - b
        anchored = any(anchor >= 0 for anchor in self.anchors)
        of_anchors = self.of_anchors() if anchored else [0.0] * n
        self.accept = of_anchors + of_draws + of_top_ups
        self.residual_mass = max(self.alive * self.next_mass() - sum(of_anchors), 0.0)

    def of_anchors(self) -> list[float]:
        """What each anchor may claim of the next target: the draws leave all of its target."""
        if self.next is not None:
            return [self.alive * float(self.next[anchor]) if anchor >= 0 else 0.0 for anchor in self.anchors]
        scale = self.alive / (self.missing + self.remainder_mass + SPARE)
        return [scale * float(self.target[anchor]) if anchor >= 0 else 0.0 for anchor in self.anchors]

    @property
    def missing(self) -> float:
        """What the target lacks to one."""
        return 1 - self.whole if 1 - self.whole > FULL else 0.0

    @cached_property
    def remainder_mass(self) -> float:
        """The sum of what the draws leave of the target."""
        return self.plan.record + self.plan.undrafted

    def next_mass(self) -> float:
        """The sum of the target of what comes next."""
        if self.next is not None:
            return sum_of(self.next)
        return self.remainder_mass / (self.missing + self.remainder_mass) if self.missing > 0 else 1.0

    def next_target(self) -> np.ndarray:
        """The target of whatever comes after the draws, and after the top-ups so far."""
        if self.next is None:
            self.next = self.plan.remainder()
            hand_on(self.next, sum_of(self.next), self.target, 1.0, self.whole)
        return self.next

    def residual(self) -> np.ndarray:
        """Probability of emitting each token otherwise than as a draft."""
        residual = self.alive * self.next_target()
        residual[[anchor for anchor in self.anchors if anchor >= 0]] = 0.0
        return residual


def anchored_lorenz(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    drafted: Int[Tensor, "*batch width"],
    law: Anchored,
) -> Outcome:
    """As `anchored_lorenz.anchored_lorenz`, row by row."""
    same_shape("target and draft", target.shape, draft.shape)
    same_shape("drafted and the law's width", drafted.shape[-1:], (law.width,))
    tuples = drafted.reshape(-1, law.width).tolist()
    known = [tokens[: law.drafts] for tokens in tuples]
    if law.draft_probability < 1:
        known = law.anchor_tokens(draft).reshape(-1, law.drafts).tolist()
    if (largest := max(max(tokens) for tokens in tuples)) >= target.shape[-1]:
        raise AdviceError(f"drafted has token id {largest}; ids are below {target.shape[-1]}")
    rows = [Verified(*row, law) for row in zip(lines(target), lines(draft), tuples, known, strict=True)]
    made = lambda parts, like: torch.from_numpy(np.array(parts)).to(target.dtype).view(like.shape)  # noqa: E731
    accept = made([row.accept for row in rows], drafted)
    residual = lambda: made([row.residual() for row in rows], target)  # noqa: E731
    return Outcome(accept, residual, drafted, lambda: made([row.residual_mass for row in rows], target[..., 0]))


def plan_of(target: np.ndarray, draft: np.ndarray, count: int, a: float) -> Row | Coupled:
    """The schedule of the draws, or their coupling if there is one at most."""
    if count > 1:
        return row_of(target, draft, count, a)
    return Coupled(target, draft * a if count else np.zeros_like(draft))


@compiled
def without(draft, tokens, lowest):
    """As `law.without`, in float64: the distribution renormalised without some tokens and all below `lowest`."""
    kept = draft.astype(np.float64)
    forget(kept, tokens, lowest)
    total = sum_of(kept)
    return kept / total if total > 0 else kept
