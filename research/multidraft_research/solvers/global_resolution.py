"""Global Resolution: the optimal rule for i.i.d. drafts, approximately, by truncated convex minimisation."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from multidraft.verification.precision import MIN_DRAFT_PROBABILITY
from multidraft_research.solvers.convex import minimise, potential
from multidraft_research.solvers.outer_residuals import OuterSplit, outer_residuals

ITERATIONS = 25  # Appendix K
LIMITS = {1: 1000, 2: 100, 3: 60, 4: 25}  # tokens in a truncation, by drafts. Ours, for below some 50 ms a solve: the
MORE_DRAFTS = 15  # numbers of Appendix K are lost in the copy we have


@dataclass(frozen=True)
class System:
    """How one of the two convex problems went: truncated tokens, what the truncation leaves out, and the gradient."""

    tokens: Int[np.ndarray, " tokens"]
    left_out: float
    score: Float[np.ndarray, " tokens"] = field(default_factory=lambda: np.zeros(0))
    gradient: float = np.inf
    iterations: int = 0

    @property
    def deviation(self) -> float:
        """1-norm of the deviation from the system's equalities, at most (Theorems 6.4 and 6.5)."""
        return self.gradient + 3 * self.left_out


@dataclass(frozen=True)
class Resolution:
    """What Global Resolution found for one pair of distributions.

    `failure` is None, or says which step failed; then the guarantee does not hold and `score` must not be used.
    `score[i]` is the paper's softmax variable of token `i`: zero outside the truncation, -inf where nothing is drafted.
    """

    split: OuterSplit
    outer: System
    inner: System
    score: Float[np.ndarray, " vocab"]
    failure: str | None

    @property
    def deviation(self) -> float:
        """1-norm of the emitted token's law minus the target, at most: outer + 2 inner (Lemma 6.6)."""
        return self.outer.deviation + 2 * self.inner.deviation

    @property
    def loss(self) -> float:
        """Acceptance below the optimum, at most: the deviation of the inner system, for the outer rows are exact."""
        return self.inner.deviation

    def accept(self, tokens: Int[np.ndarray, "*sets some"]) -> Float[np.ndarray, "*sets some"]:
        """Probability of emitting each of the distinct drafted tokens.

        With a token outside H* among them, a softmax over those outside; otherwise one with a slack of 1 (eq. 14, 17).
        """
        outside = ~self.split.inside[tokens]
        leaves = outside.any(-1, keepdims=True)
        score = np.where(leaves & ~outside, -np.inf, self.score[tokens])
        top = np.maximum(score.max(-1, keepdims=True), np.where(leaves, -np.inf, 0.0))
        top = np.where(np.isfinite(top), top, 0.0)  # nothing to share: every score is -inf
        share = np.exp(score - top)
        total = share.sum(-1, keepdims=True) + np.where(leaves, 0.0, np.exp(-top))
        return np.divide(share, total, out=np.zeros_like(share), where=total > 0)


def global_resolution(
    target: Float[np.ndarray, " vocab"],
    draft: Float[np.ndarray, " vocab"],
    drafts: int,
    tolerance: float = 1e-3,
    iterations: int = ITERATIONS,
    limit: int | None = None,
) -> Resolution:
    """An approximately optimal rule for `drafts` i.i.d. draws, or a statement of what failed.

    1. `H*` and the outer residuals `r` by `outer_residuals`.
    2. Truncation: the fewest likely tokens `T` outside H* with `1 - draft(H* + T)^n <= tolerance`, and within H* with
       `draft(H*)^n - draft(T)^n <= tolerance`. Fails if there are more than `limit` of either.
    3. L-BFGS-B on both potentials until the gradient's 1-norm is at most twice the tolerance. Fails if it is not.

    Each system is then off by at most 5 tolerances, hence the law of the emitted token by at most 15 (1-norm), and the
    acceptance rate by at most 5 (10 in the paper); `deviation` and `loss` state what was reached. `target` may sum to
    less than one; `draft` sums to one. Approximate, and often a failure beyond some ten tokens: `lorenz` solves the
    same problem exactly and never fails. Raises ImportError without SciPy.

    Global Resolution, Section 6 and Appendix K.

    >>> global_resolution(np.array([0.25, 0.75]), np.array([0.5, 0.5]), 1).accept(np.array([1]))
    array([1.])
    """
    split = outer_residuals(target, draft, drafts)
    limit = LIMITS.get(drafts, MORE_DRAFTS) if limit is None else limit
    outer = _outer_tokens(split, draft, drafts, tolerance)
    inner = _inner_tokens(split, draft, drafts, tolerance)
    score = np.where(draft > MIN_DRAFT_PROBABILITY, 0.0, -np.inf)
    for name, system in (("outside", outer), ("inside", inner)):
        if len(system.tokens) > limit:
            failure = f"a tolerance of {tolerance:g} takes {len(system.tokens)} tokens {name} H*, more than {limit}"
            return Resolution(split, outer, inner, score, failure)
    inside = float(draft[split.inside].sum())
    outer = _minimise(outer, target - split.residual, draft, drafts, 0, inside, tolerance, iterations)
    inner = _minimise(inner, target, draft, drafts, 1, 0.0, tolerance, iterations)
    for system in (outer, inner):
        score[system.tokens] = system.score
    return Resolution(split, outer, inner, score, _large_gradient(outer, inner, tolerance))


def _outer_tokens(split: OuterSplit, draft: np.ndarray, drafts: int, tolerance: float) -> System:
    """The truncation outside H*; what it leaves out is the probability of a draft outside H* and T."""
    tokens = np.flatnonzero(~split.inside & (draft > MIN_DRAFT_PROBABILITY))
    tokens = tokens[np.argsort(-draft[tokens], kind="stable")]
    missed = np.concatenate([[draft[tokens].sum()], draft[tokens].sum() - draft[tokens].cumsum()]).clip(0, 1)
    left_out = -np.expm1(drafts * np.log1p(-missed.clip(max=1 - 1e-16)))
    size = int(np.argmax(left_out <= max(tolerance, left_out[-1])))
    return System(tokens[:size], float(left_out[size]))


def _inner_tokens(split: OuterSplit, draft: np.ndarray, drafts: int, tolerance: float) -> System:
    """The truncation of H*; what it leaves out is the probability that all drafts are in H* but not all in T."""
    tokens = np.flatnonzero(split.inside)
    tokens = tokens[np.argsort(-draft[tokens], kind="stable")]
    kept = np.concatenate([[0.0], draft[tokens].cumsum()])
    left_out = (kept[-1] ** drafts - kept**drafts).clip(min=0)
    size = int(np.argmax(left_out <= tolerance))
    return System(tokens[:size], float(left_out[size]))


def _minimise(
    system: System,
    demand: np.ndarray,
    draft: np.ndarray,
    drafts: int,
    slack: int,
    elsewhere: float,
    tolerance: float,
    iterations: int,
) -> System:
    """A system with its convex problem minimised."""
    tokens = system.tokens
    function = potential(demand[tokens], draft[tokens], drafts, slack, elsewhere)
    score, gradient, used = minimise(function, 2 * tolerance, iterations)
    return System(tokens, system.left_out, score, gradient, used)


def _large_gradient(outer: System, inner: System, tolerance: float) -> str | None:
    """Which of the two gradients is too large, if any."""
    for name, system in (("outer", outer), ("inner", inner)):
        if system.gradient > 2 * tolerance:
            return (
                f"the {name} gradient is {system.gradient:.2g} after {system.iterations} iterations, above "
                f"{2 * tolerance:g}"
            )
    return None
