"""From single results of `solve_time` to the tables: one line a method and problem, and the best within a time."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean

import numpy as np

from multidraft_research.studies.solve_time import STOPS, Result

FALLBACKS = ("linear_program", "max_flow", "reduced_max_flow")  # of Global Resolution, in the paper's Table 2
LIMITS = (10, 100)  # milliseconds

TokenKey = tuple[str, int, int, int]  # source, k, n, token
Settled = tuple[float, float]  # seconds, acceptance rate


@dataclass(frozen=True)
class MethodLine:
    """A method in a problem: means over the tokens that it solved, `milliseconds_tried` over all that it tried.

    `over_lorenz`: its time over that of lorenz on the tokens that it solved. `share`: its acceptance over the optimum
    there. `stopped`: why it left out the remaining tokens, if it did; then not all tokens were tried.
    `milliseconds_range`: the 2.5 % and the 97.5 % quantile over the tokens that it solved.
    """

    source: str
    k: int
    n: int
    method: str
    tried: int
    solved: int
    stopped: str
    milliseconds: float | None
    milliseconds_tried: float
    over_lorenz: float | None
    acceptance_rate: float | None
    share: float | None
    total_variation: float | None
    by: str
    milliseconds_range: tuple[float, float] | None = None

    @property
    def success(self) -> float:
        """Share of the tokens tried that it solved."""
        return self.solved / self.tried


@dataclass(frozen=True)
class Best:
    """The problem in which a method accepts most within a time (both means); no problem where none is quick enough."""

    source: str
    limit: int
    method: str
    k: int | None = None
    n: int | None = None
    acceptance_rate: float | None = None
    milliseconds: float | None = None


def token_of(result: Result) -> TokenKey:
    """Which token of which problem."""
    return result.source, result.k, result.n, result.token


def lines(results: Iterable[Result]) -> list[MethodLine]:
    """One line for every method and problem, in the order in which they first came."""
    everything = list(results)
    lorenz = {token_of(r): r.seconds for r in everything if r.method == "lorenz" and r.status == "solved"}
    return [line(group, lorenz) for group in by_case(everything).values()]


def by_case(results: Iterable[Result]) -> dict[tuple[str, int, int, str], list[Result]]:
    """The results of every method and problem."""
    cases: dict[tuple[str, int, int, str], list[Result]] = {}
    for result in results:
        cases.setdefault(result.case, []).append(result)
    return cases


def line(group: list[Result], lorenz: dict[TokenKey, float]) -> MethodLine:
    """The line of one method in one problem."""
    solved = [r for r in group if r.status == "solved"]
    known = [(r.acceptance_rate or 0.0, r.total_variation or 0.0) for r in solved]
    compared = [r for r in solved if token_of(r) in lorenz]
    theirs = sum(lorenz[token_of(r)] for r in compared)
    return MethodLine(
        *group[0].case,
        tried=len(group),
        solved=len(solved),
        stopped=next((r.status for r in group if r.status in STOPS), ""),
        milliseconds=1e3 * mean(r.seconds for r in solved) if solved else None,
        milliseconds_tried=1e3 * mean(r.seconds for r in group),
        over_lorenz=sum(r.seconds for r in compared) / theirs if theirs else None,
        acceptance_rate=mean(rate for rate, _ in known) if solved else None,
        share=sum(rate for rate, _ in known) / max(sum(r.optimum for r in solved), 1e-300) if solved else None,
        total_variation=mean(deviation for _, deviation in known) if solved else None,
        by=", ".join(dict.fromkeys(r.by for r in solved)),
        milliseconds_range=middle_95([1e3 * r.seconds for r in solved]) if solved else None,
    )


def middle_95(values: list[float]) -> tuple[float, float]:
    """The 2.5 % and the 97.5 % quantile.

    >>> middle_95([2.0, 1.0, 3.0])
    (1.05, 2.95)
    """
    low, high = np.quantile(values, (0.025, 0.975))
    return round(float(low), 6), round(float(high), 6)


def best(results: Iterable[Result]) -> list[Best]:
    """The paper's Table 2 for every source, method and limit.

    Where Global Resolution fails on a token, the quickest of FALLBACKS takes over and its time is added, as there. A
    problem counts for a method only if all of its tokens are settled so.
    """
    everything = list(results)
    tokens: dict[tuple[str, int, int], set[int]] = {}
    for r in everything:
        tokens.setdefault((r.source, r.k, r.n), set()).add(r.token)
    fallback = quickest(everything)
    best_by_case: dict[tuple[str, int, str], Best] = {}
    for (source, k, n, method), group in by_case(everything).items():
        settled = [answer for r in group if (answer := settle(r, fallback))]
        for limit in LIMITS:
            now = best_by_case.setdefault((source, limit, method), Best(source, limit, method))
            if len(settled) < len(tokens[source, k, n]):
                continue
            milliseconds, rate = 1e3 * mean(s for s, _ in settled), mean(a for _, a in settled)
            if milliseconds <= limit and rate > (now.acceptance_rate or 0.0):
                best_by_case[source, limit, method] = Best(source, limit, method, k, n, rate, milliseconds)
    return list(best_by_case.values())


def quickest(results: Iterable[Result]) -> dict[TokenKey, Settled]:
    """The quickest of FALLBACKS on every token that one of them solved."""
    known: dict[TokenKey, Settled] = {}
    for r in results:
        if r.method in FALLBACKS and r.status == "solved" and r.acceptance_rate is not None:
            known[token_of(r)] = min(known.get(token_of(r), (math.inf, 0.0)), (r.seconds, r.acceptance_rate))
    return known


def settle(result: Result, fallback: dict[TokenKey, Settled]) -> Settled | None:
    """Time and acceptance on one token, with the fallback where there is one."""
    if result.status == "solved" and result.acceptance_rate is not None:
        return result.seconds, result.acceptance_rate
    if result.status == "failed" and token_of(result) in fallback:
        seconds, rate = fallback[token_of(result)]
        return result.seconds + seconds, rate
    return None
