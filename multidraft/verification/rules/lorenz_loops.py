"""The Lorenz schedule as compiled loops, for CPUs: the numbers of `lorenz.drawable_schedule`, several times faster.

One loop over the drafted tokens takes the place of some sixty passes, and only tokens that can be drafted are sorted.
`tests/verification/test_loops.py` and `test_pairs.py` compare the two.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.loops import compiled, lines, same_shape, sum_of
from multidraft.verification.precision import DRAWABLE, NEVER_ZERO, SMALLEST_NORMAL, SPARE
from multidraft.verification.rules.roots import CONVERGED, STEPS


@dataclass(frozen=True)
class Row:
    """The schedule of one row; positions count its drafted tokens sorted by p/q, largest first."""

    target: np.ndarray  # (vocabulary,)
    draft: np.ndarray  # (vocabulary,), not normalised
    count: int  # of drafts
    total: float  # of the draft
    order: np.ndarray  # position -> token
    columns: np.ndarray  # (4, positions): Q, T, drop and s, as in `lorenz.Schedule`; s is what survives a phase
    optimum: float
    record: float  # the sum of all drops: what remains of the target on tokens that can be drafted
    undrafted: float  # the target's mass on tokens that are never drafted

    def is_of(self, p: np.ndarray, q: np.ndarray, count: int) -> bool:
        """Whether it is the schedule of these."""
        return count == self.count and np.array_equal(p, self.target) and np.array_equal(q, self.draft)

    def accept(self, draws: np.ndarray) -> np.ndarray:
        """Probability of emitting each draw."""
        return accept(self.target, self.order, self.columns[3], draws)

    def remainder(self) -> np.ndarray:
        """R = p - r, by token."""
        return remainder(self.target, self.draft, self.total, self.order, self.columns, self.record)


@dataclass(frozen=True)
class Schedule:
    """The schedules of all rows."""

    rows: list[Row]
    shape: torch.Size  # of the target

    def accept(self, draws: Int[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Probability of emitting each draw."""
        accepted = [row.accept(line) for row, line in zip(self.rows, lines(draws), strict=True)]
        return torch.from_numpy(np.stack(accepted)).view(draws.shape)

    def remainder(self) -> Float[Tensor, "*batch vocabulary"]:
        """R = p - r, by token."""
        return torch.from_numpy(np.stack([row.remainder() for row in self.rows])).view(self.shape)

    @property
    def optimum(self) -> Float[Tensor, "*batch"]:
        """alpha*."""
        return self.of_rows([row.optimum for row in self.rows])

    @property
    def record(self) -> Float[Tensor, "*batch"]:
        """What remains of the target on tokens that can be drafted."""
        return self.of_rows([row.record for row in self.rows])

    @property
    def undrafted(self) -> Float[Tensor, "*batch"]:
        """The target's mass on tokens that are never drafted."""
        return self.of_rows([row.undrafted for row in self.rows])

    def of_rows(self, numbers: list[float]) -> Float[Tensor, "*batch"]:
        """One number a row as a tensor."""
        return torch.tensor(numbers, dtype=torch.float64).view(self.shape[:-1])


def drawable_schedule(
    target: Float[Tensor, "*batch vocabulary"],
    draft: Float[Tensor, "*batch vocabulary"],
    count: Int[Tensor, "*batch"],
    draft_probability: float = 1.0,
    most: int | None = None,
) -> Schedule:
    """As `lorenz.drawable_schedule`, row by row; a row equal to the one before shares its schedule.

    Here a look costs nothing, and `most` is not needed.
    """
    rows = list[Row]()
    for p, q, n in zip(lines(target), lines(draft), count.flatten().tolist(), strict=True):
        rows.append(rows[-1] if rows and rows[-1].is_of(p, q, n) else row_of(p, q, n, draft_probability))
    return Schedule(rows, target.shape)


def row_of(p: np.ndarray, q: np.ndarray, count: int, a: float) -> Row:
    """The schedule of one row."""
    same_shape("target and draft", p.shape, q.shape)
    tokens, rising, total, undrafted = candidates(p, q)
    order = tokens[np.argsort(rising)]  # NumPy's sort has vector instructions, Numba's has not
    columns, optimum, record = phases(p, q, total, order, count if total > 0 else 0, float(a))
    return Row(p, q, count, total, order, columns, optimum, record, undrafted)


@compiled
def candidates(p, q):
    """The tokens that can be drafted, -p/q up to a factor, the sum of q, and the sum of p over all other tokens."""
    total, undrafted = sum_of(q), 0.0
    lowest = DRAWABLE * max(total, SMALLEST_NORMAL)
    tokens, rising, found = np.empty(q.size, np.int64), np.empty(q.size), 0
    for token in range(q.size):
        if q[token] > lowest:
            tokens[found], rising[found] = token, -np.float64(p[token]) / np.float64(q[token])
            found += 1
        else:
            undrafted += p[token]
    return tokens[:found], rising[:found], total, undrafted


@compiled
def phases(p, q, total, order, n, a):
    """Q, T, drop and s at every position (docs/theory.md), alpha*, and the sum of all drops."""
    columns = np.empty((4, order.size))
    Q, P, M, T, x = 0.0, 0.0, 0.0, 0.0, 1.0
    for k in range(order.size):
        token = order[k]
        P, Q = P + p[token], min(Q + q[token] / total, 1.0)
        D = a * (1 - power(1 - Q, n)) - P
        drop, M = M - D, min(M, D)
        m = p[order[k + 1]] * total / q[order[k + 1]] if k + 1 < order.size else 0.0
        x = last_root(max(P + M - m * Q, 0.0), m, n, a, x)
        before = Q - T
        T = Q if drop > 0 else max(T, min(1 - x, Q))
        columns[0, k], columns[1, k], columns[2, k] = Q, T, drop
        columns[3, k] = (Q - T) / before if before > 0 else 1.0  # an empty phase lets everything through
    return columns, P + M, -M


@compiled
def power(x, n):
    """x^n by repeated squaring."""
    result = 1.0
    while n > 0:
        if n & 1:
            result *= x
        x, n = x * x, n >> 1
    return result


@compiled
def last_root(c, m, n, a, guess):
    """1 - t for the smallest t in [0, 1] with a (1 - (1 - t)^n) - m t = c, and 1 where every t is a root.

    As in `roots`; Newton's method goes on from the root before where that is above this one.
    """
    if n == 0:
        return 1.0
    if n == 1:
        return 1 - c / (a - m) if a != m else 1.0
    if n == 2:
        b = 2 * a - m
        slope = b + np.sqrt(max(b * b - 4 * a * c, 0.0))
        return 1 - 2 * c / slope if slope > 0 else 1.0
    d = c + m - a
    high = power(guess, n - 1)
    x = guess if a * n * high > m and (a * high - m) * guess + d >= 0 else max(1 - c / a, 0.0) ** (1 / n)
    for _ in range(STEPS):
        high = power(x, n - 1)
        value = (a * high - m) * x + d
        if value <= CONVERGED * max(1.0, n / 4):
            break
        x -= value / (a * n * high - m + NEVER_ZERO)
    return x


@compiled
def accept(p, order, survive, draws):
    """Probability of emitting each draw: in stage c the first c draws are active and share what does not survive it."""
    accepted, places = np.zeros(draws.size), np.full(draws.size, order.size)
    for place in range(order.size):
        for j in range(draws.size):
            if draws[j] == order[place]:
                places[j] = place
    by_place, alive = np.argsort(places), 1.0
    for c in range(draws.size):
        end = places[by_place[c + 1]] if c + 1 < draws.size else order.size
        through = 1.0
        for place in range(places[by_place[c]], end):
            through *= survive[place]
        lost = alive * (1 - power(through, c + 1))
        alive -= lost
        for j in by_place[: c + 1]:
            # A token without any target claims nothing, and not the rounding of its neighbours either.
            accepted[j] += lost / (c + 1) if draws[j] >= 0 and p[draws[j]] > 0 else 0.0
    return accepted


@compiled
def remainder(p, q, total, order, columns, record):
    """R = p - r: nothing after the last reset, and before one a share of its drop; p where nothing can be drafted."""
    remains, lost = p.astype(np.float64), 0.0
    share = 0.0  # of the next reset's drop, for each unit of draft mass
    for k in range(order.size - 1, -1, -1):
        Q, drop, token = columns[0, k], columns[2, k], order[k]
        if drop > 0:
            share = drop / max(Q - (columns[1, k - 1] if k > 0 else 0.0), SMALLEST_NORMAL)
        else:
            share *= columns[3, k]
        remains[token] = min(share * q[token] / total, remains[token]) + SPARE * remains[token]
        lost += remains[token]
    for token in order:
        remains[token] *= record / lost if lost > 0 else 0.0  # their sum, however the shares are rounded
    return remains
