"""Single-draft coupling as compiled loops, for CPUs."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.verification.loops import compiled, same_shape, sum_of
from multidraft.verification.precision import FULL


@dataclass(frozen=True)
class Coupled:
    """Where one token is drawn, or none: what `lorenz_loops.Row` is for several."""

    target: np.ndarray  # (vocabulary,)
    draft: np.ndarray  # (vocabulary,), what the draw comes from; zero where there is none

    def accept(self, draws: np.ndarray) -> np.ndarray:
        """Probability of emitting each draw, of which the first alone may hold a token."""
        accepted = np.zeros(len(draws))
        if draws[0] >= 0:
            accepted[0] = acceptance(self.target, self.draft, draws[0])
        return accepted

    def remainder(self) -> np.ndarray:
        """R = p - r: what of the target the draft cannot cover."""
        return remainder(self.target, self.draft, 1.0)

    @property
    def record(self) -> float:
        """The sum of it."""
        return float(sum_of(self.remainder()))

    undrafted = 0.0  # is in the record


def residual(
    target: Float[Tensor, " vocabulary"], law: Float[Tensor, " vocabulary"], weight: float, accept: float
) -> Float[Tensor, " vocabulary"]:
    """As `coupling.residual`."""
    same_shape("target and law", target.shape, law.shape)
    emitted = next_target(target.detach().numpy(), law.detach().numpy(), weight)
    emitted *= 1 - accept
    return torch.from_numpy(emitted)


def acceptance(target: np.ndarray, law: np.ndarray, token: int | np.integer) -> float:
    """As `coupling.acceptance`, of one token."""
    claimed, drawn = target[token], law[token]
    return float(claimed > 0) if claimed >= drawn else float(claimed / drawn)


@compiled
def remainder(target, law, weight):
    """As `coupling.remainder`, of a target scaled to a weight."""
    remains = np.empty(target.size)
    for token in range(target.size):
        remains[token] = max(weight * np.float64(target[token]) - np.float64(law[token]), 0.0)
    return remains


@partial(compiled, any_order=True)
def next_target(target, law, weight):
    """(w t - law)_+ / (1 - sum min(w t, law)), with all sums in the same pass."""
    remains, whole, total = np.empty(target.size), 0.0, 0.0
    for token in range(target.size):
        part = weight * np.float64(target[token])
        remains[token] = max(part - np.float64(law[token]), 0.0)
        whole += part
        total += remains[token]
    hand_on(remains, total, target, weight, whole)
    return remains


@compiled
def hand_on(remains, total, target, weight, whole):
    """As `precision.next_target`: divide what remains by missing + its total; where nothing does, it is the target."""
    missing = 1 - whole if 1 - whole > FULL else 0.0
    if total > 0:
        rejected = missing + total
        for token in range(remains.size):
            remains[token] /= rejected
    elif missing == 0:
        for token in range(remains.size):
            remains[token] = weight * np.float64(target[token]) / whole
