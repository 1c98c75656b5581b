"""Solvers of the full problem as rules: row by row, from mass moved to the law of the emitted token. Slow by nature."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multidraft.verification.distributions import normalise
from multidraft.verification.law import Law, is_duplicate
from multidraft.verification.laws.iid import Iid
from multidraft.verification.outcome import Outcome
from multidraft.verification.precision import Draft, Rows, Tuples, missing, next_target
from multidraft_research.solvers.moved import Moved
from multidraft_research.solvers.network import Network, iid_network, merge_tuples


@runtime_checkable
class Solved(Protocol):
    """What a rule must know about a node, whatever is drafted there."""

    @property
    def next_target(self) -> Float[np.ndarray, " vocabulary"]:
        """The target of what comes next: the residual for one unit of rejection."""

    def accept(self, tokens: Int[np.ndarray, " some"]) -> Float[np.ndarray, " some"]:
        """Probability of emitting each of the distinct drafted tokens."""


Solver = Callable[[np.ndarray, Network, np.ndarray, int], Moved]  # target, network, draft, number of drafts
AnySolved = TypeVar("AnySolved", bound=Solved)


@dataclass(frozen=True)
class PointRule:
    """The rule of a feasible point `m` of the relaxed problem, exact whether or not `m` is optimal.

        accept[i | S] = m[S, i] / Pr(S),      next_target = R / (1 - alpha)

    with `R = target - r`, `r_i = sum_S m[S, i]` and `alpha = sum r`. Averaged over the sets, accept gives `r`, and the
    residual `(1 - sum accept) next_target` gives `R`.
    """

    moved: Moved
    next_target: Float[np.ndarray, " vocabulary"]

    def accept(self, tokens: Int[np.ndarray, " some"]) -> Float[np.ndarray, " some"]:
        """m[S, i] / Pr(S); nothing for a set so unlikely that its probability is no number."""
        network, mass = self.moved.network, self.moved.mass
        places = network.find(tokens)
        edges = slice(network.start[places], network.start[places + 1])
        total = max(network.probability[places], mass[edges].sum(), np.finfo(float).tiny)
        return mass[edges][np.searchsorted(network.token[edges], tokens)] / total


def by_solving(solver: Solver, target: Rows, draft: Draft, drafted: Tuples, law: Law) -> Outcome:
    """The rule that follows from a solver of the relaxed problem."""
    return rule_and_plans(solver, target, draft, drafted, law)[0]


def rule_and_plans(
    solver: Solver, target: Rows, draft: Draft, drafted: Tuples, law: Law
) -> tuple[Outcome, list[PointRule | None]]:
    """The rule that follows from a solver of the relaxed problem, with the plan of every row."""

    def solve(p: Tensor, q: Tensor, count: int) -> PointRule:
        moved = solver(p.numpy(), network_of(law, q, count), q.numpy(), count)
        return PointRule(moved, next_target_of(p.numpy(), (p.numpy() - moved.token_mass(len(p))).clip(min=0)))

    return row_by_row(solve, target, draft, drafted, law)


def row_by_row(
    solve: Callable[[Tensor, Tensor, int], AnySolved], target: Rows, draft: Draft, drafted: Tuples, law: Law
) -> tuple[Outcome, list[AnySolved | None]]:
    """Solve every different pair of distributions in the batch once, and read each row's outcome off its solution.

    A row without drafts (where some were to be drawn) has nothing to solve: None, and it emits from the target.
    """
    p, q, x = rows(target, draft, drafted)
    accept, residual = torch.zeros(x.shape, dtype=torch.float64), p.clone()
    first = (x >= 0) & ~is_duplicate(x)
    known: dict[tuple[bytes, bytes, int], AnySolved] = {}
    nodes: list[AnySolved | None] = []
    for row in range(len(p)):
        count = int((x[row] >= 0).sum()) if law.draft_probability == 1 else law.drafts
        row_draft = drafts_law(law, q[row], x[row] >= 0) if count else q[row]
        key = (p[row].numpy().tobytes(), row_draft.numpy().tobytes(), count)
        if count and key not in known:
            known[key] = solve(p[row], row_draft, count)
        nodes.append(node := known.get(key))
        if node is not None:
            tokens = x[row, first[row]].numpy()
            accept[row, first[row]] = torch.from_numpy(node.accept(tokens) if len(tokens) else np.zeros(0))
            residual[row] = (1 - accept[row].sum()).clamp(min=0) * torch.from_numpy(node.next_target)
    outcome = Outcome(accept.reshape(drafted.shape).to(target), residual.reshape(target.shape).to(target), drafted)
    return outcome, nodes


def drafts_law(law: Law, draft: Tensor, filled: Bool[Tensor, " width"]) -> Tensor:
    """The draft distribution; for `distinct`, those of the filled positions, which go round when a node drew again."""
    if not law.per_draft_distributions or law.draft_probability < 1:
        return draft
    return draft[filled.nonzero()[:, 0] % law.drafts]


def network_of(law: Law, draft: Draft, drafts: int | None = None) -> Network:
    """The sets that a drafting law can draw from one (small) draft distribution.

    `drafts` is the number of i.i.d. draws, or of the draft distributions of `distinct`, where it is not the law's.

    >>> network_of(Iid(2), torch.tensor([0.5, 0.5])).probability.tolist()
    [0.25, 0.25, 0.5]
    """
    q = draft.double().cpu()
    q = q / q.sum(-1, keepdim=True)
    if isinstance(law, Iid):
        return iid_network(q.numpy(), law.drafts if drafts is None else drafts, law.draft_probability)
    if law.per_draft_distributions and drafts is not None:
        law = replace(law, drafts=drafts)
    return merge_tuples(*law.tuples(q))


def rows(target: Tensor, draft: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Target, draft and drafted with one batch dimension, on the CPU, in float64.

    A full target sums to one exactly: what a float32 one lacks by rounding would be rejected although nothing of the
    target remains, and emitted from rounding.
    """
    p = target.detach().double().cpu().reshape(-1, target.shape[-1])
    p = torch.where(missing(p)[:, None] > 0, p, normalise(p))
    q = draft.detach().double().cpu().reshape(len(p), *draft.shape[target.ndim - 1 :])  # `distinct`: n distributions
    return p, q, drafted.cpu().reshape(len(p), drafted.shape[-1])


def next_target_of(
    target: Float[np.ndarray, " vocabulary"], remainder: Float[np.ndarray, " vocabulary"]
) -> Float[np.ndarray, " vocabulary"]:
    """`R / (1 - alpha)`, for R = `remainder`."""
    return next_target(torch.tensor(remainder), torch.tensor(target)).numpy()
