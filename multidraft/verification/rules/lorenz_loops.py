"""The Lorenz rule as compiled loops over the tokens that can be drafted, for CPUs: faster than tensors."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
import torch

from multidraft.errors import AdviceError
from multidraft.verification.law import Staged
from multidraft.verification.loops import compile_loop, forget, lines, same_shape, sum_of
from multidraft.verification.outcome import Outcome
from multidraft.verification.precision import (
    MAX_MISSING_MASS,
    MIN_DRAFT_PROBABILITY,
    NEGLIGIBLE_MASS,
    NEVER_ZERO,
    SMALLEST_NORMAL,
    Rows,
    Tuples,
    least,
)
from multidraft.verification.rules.lorenz_schedule import CONVERGED_GAP, STEPS

NodeRule = tuple[Callable[[np.ndarray], np.ndarray], np.ndarray]  # what draws are accepted with, the next target
RuleInputs = tuple[np.ndarray, np.ndarray, int]  # target, draft, and the number of draws


def node_of(p: np.ndarray, q: np.ndarray, count: int, a: float) -> NodeRule:
    """What the rule knows of `count` draws before it sees them; one at most, in any position, is coupled."""
    if count <= 1:
        draft_probs = q.astype(np.float64) * (a if count else 0.0)
        return lambda draws: np.where(draws >= 0, acceptance(p, draft_probs, draws.max()), 0.0), next_target(
            p, draft_probs
        )
    tokens, rising, total = candidates(p, q)
    order = tokens[np.argsort(rising)]  # NumPy's sort has vector instructions, Numba's has not
    columns, record = phases(p, q, total, order, count if total > 0 else 0, float(a))
    after = remainder(p, q, total, order, columns, record)
    hand_on(after, sum_of(after), p, sum_of(p))
    return partial(accept, p, order, columns[3]), after


def nodes(rows: Iterable[RuleInputs], a: float) -> Iterator[NodeRule]:
    """What the rule knows of each row; a row equal to the one before shares it."""
    before: RuleInputs | None = None
    for p, q, count in rows:
        if before is None or before[2] != count or not (np.array_equal(p, before[0]) and np.array_equal(q, before[1])):
            before, node = (p, q, count), node_of(p, q, count, a)
        yield node


def lorenz(target: Rows, draft: Rows, drafted: Tuples, law: Staged) -> Outcome:
    """The outcome of the Lorenz rule, row by row."""
    same_shape("target and draft", target.shape, draft.shape)
    same_shape("drafted and the law's width", drafted.shape, (*draft.shape[:-1], law.width))
    p, q, tuples, a = lines(target), lines(draft), lines(drafted), law.draft_probability
    if tuples.size and (largest := tuples.max()) >= p.shape[-1]:
        raise AdviceError(f"drafted has token id {largest}; ids are below {p.shape[-1]}")
    deterministic, draws, _ = law.parts(tuples)
    known_deterministic = (
        deterministic if a == 1 else law.deterministic_tokens(draft).numpy().reshape(len(p), deterministic.shape[-1])
    )
    counts = (draws >= 0).sum(-1) if a == 1 else law.drafts - (known_deterministic >= 0).sum(-1)
    lowest = least(draft.dtype)
    drawn_from = (
        without(row, tokens, lowest) if law.has_deterministic else row
        for row, tokens in zip(q, known_deterministic, strict=True)
    )
    row_nodes = nodes(zip(p, drawn_from, counts.tolist(), strict=True), a)
    rows = [in_three_stages(*row, law, lowest) for row in zip(row_nodes, q, tuples, strict=True)]
    accept, residual = (torch.from_numpy(np.stack(part)).to(target.dtype) for part in zip(*rows, strict=True))
    return Outcome(accept.view(drafted.shape), residual.view(target.shape), drafted)


def in_three_stages(
    node: NodeRule, draft: np.ndarray, drafted: np.ndarray, law: Staged, lowest: float
) -> tuple[np.ndarray, np.ndarray]:
    """What is accepted at every position of a tuple, and the residual: draws, then top-ups, then sure tokens."""
    deterministic, draws, top_ups = law.parts(drafted)
    accepted, after = node
    of_draws, of_top_ups = accepted(draws), np.zeros(len(top_ups))
    alive = max(1 - of_draws.sum(), 0.0)
    for j in range(int((top_ups >= 0).sum())):
        conditional = without(draft, drafted[: len(drafted) - len(top_ups) + j], lowest)
        b = acceptance(after, conditional, top_ups[j])
        of_top_ups[j], alive, after = alive * b, alive * (1 - b), next_target(after, conditional)
    residual, was_drafted = alive * after, deterministic >= 0
    of_sure = np.where(was_drafted, residual[deterministic], 0.0)
    residual[deterministic[was_drafted]] = 0.0
    return np.concatenate([of_sure, of_draws, of_top_ups]), residual


def acceptance(target: np.ndarray, draft: np.ndarray, token: int | np.integer) -> float:
    """The probability min(1, t(x) / q(x)) of accepting a token."""
    target_prob, draft_prob = target[token], draft[token]
    return float(target_prob > 0) if target_prob >= draft_prob else float(target_prob / draft_prob)


@compile_loop
def without(draft, tokens, lowest):
    """The distribution in float64, renormalised without some tokens and without all below `lowest`."""
    kept = draft.astype(np.float64)
    forget(kept, tokens, lowest)
    total = sum_of(kept)
    return kept / total if total > 0 else kept


@partial(compile_loop, any_order=True)
def next_target(target, draft):
    """(t - q)_+ / (1 - sum min(t, q)), with all sums in the same pass."""
    remains, whole, total = np.empty(target.size), 0.0, 0.0
    for token in range(target.size):
        part = np.float64(target[token])
        remains[token] = max(part - np.float64(draft[token]), 0.0)
        whole += part
        total += remains[token]
    hand_on(remains, total, target, whole)
    return remains


@compile_loop
def hand_on(remains, total, target, whole):
    """Divide what remains by what is missing plus its total; where nothing remains, the target is handed on."""
    missing = 1 - whole if 1 - whole > MAX_MISSING_MASS else 0.0
    if total > 0:
        rejected = missing + total
        for token in range(remains.size):
            remains[token] /= rejected
    elif missing == 0:
        for token in range(remains.size):
            remains[token] = np.float64(target[token]) / whole


@compile_loop
def candidates(p, q):
    """The tokens that can be drafted, -p/q up to a factor, and the sum of q."""
    total = sum_of(q)
    lowest = MIN_DRAFT_PROBABILITY * max(total, SMALLEST_NORMAL)
    tokens, rising, num_found = np.empty(q.size, np.int64), np.empty(q.size), 0
    for token in range(q.size):
        if q[token] > lowest:
            tokens[num_found], rising[num_found] = token, -np.float64(p[token]) / np.float64(q[token])
            num_found += 1
    return tokens[:num_found], rising[:num_found], total


@compile_loop
def phases(p, q, total, order, n, a):
    """Q, T, drop and s at every position (docs/theory.md), and the sum of all drops."""
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
    return columns, -M


@compile_loop
def power(x, n):
    """x^n by repeated squaring."""
    result = 1.0
    while n > 0:
        if n & 1:
            result *= x
        x, n = x * x, n >> 1
    return result


@compile_loop
def last_root(c, m, n, a, guess):
    """1 - t for `schedule.smallest_root`; Newton's method goes on from the root before where that is above this one."""
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
        if value <= CONVERGED_GAP * max(1.0, n / 4):
            break
        x -= value / (a * n * high - m + NEVER_ZERO)
    return x


@compile_loop
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
            # A token without any target is never accepted, not even with the rounding of its neighbours.
            accepted[j] += lost / (c + 1) if draws[j] >= 0 and p[draws[j]] > 0 else 0.0
    return accepted


@compile_loop
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
        remains[token] = min(share * q[token] / total, remains[token]) + NEGLIGIBLE_MASS * remains[token]
        lost += remains[token]
    for token in order:
        remains[token] *= record / lost if lost > 0 else 0.0  # their sum, however the shares are rounded
    return remains
