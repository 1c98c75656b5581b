"""Global Resolution as a rule: approximately optimal for i.i.d. drafts, nearly lossless, and it may fail."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multidraft.errors import AdviceError, check_integer, is_number, quote
from multidraft.verification.law import Law
from multidraft.verification.outcome import Outcome
from multidraft.verification.precision import MAX_MISSING_MASS, Rates, Rows, Tuples
from multidraft.verification.registry import SCHEMES
from multidraft_research.solvers.global_resolution import ITERATIONS, Resolution
from multidraft_research.solvers.global_resolution import global_resolution as resolve
from multidraft_research.solvers.solved import next_target_of, row_by_row

FALLBACKS = ("k_sequential", "naive", "recursive_rejection", "lorenz", "max_flow", "linear_program")  # rules for iid


class ResolutionFailure(AdviceError):
    """Global Resolution failed on a pair of distributions, and no fallback was chosen."""


class ApproximateOutcome(Outcome):
    """An outcome with its distance from losslessness.

    `deviation`: the 1-norm between the law of the emitted token, averaged over the tuples of this row's law, and the
    target is at most this. `solved`: False where the method failed and the fallback, which is exact, answered.
    """

    def __init__(self, outcome: Outcome, deviation: Rates, solved: Bool[Tensor, "*batch"]):
        super().__init__(outcome.accept, outcome.residual, outcome.drafted)
        self.deviation, self.solved = deviation, solved


@dataclass(frozen=True)
class Solution:
    """The solution for one pair of distributions, ready for any tuple drafted there."""

    resolution: Resolution
    next_target: Float[np.ndarray, " vocabulary"]
    deviation: float

    def accept(self, tokens: Int[np.ndarray, " some"]) -> Float[np.ndarray, " some"]:
        """Probability of emitting each of the distinct drafted tokens."""
        return self.resolution.accept(tokens)


@dataclass(frozen=True)
class GlobalResolution:
    """The rule with its settings.

    `tolerance`: the law of the emitted token is off by at most 15 of it (in the 1-norm), the acceptance rate by at most
    5 (10 as the paper has it). `fallback`: a rule of FALLBACKS for the pairs on which the method fails, or None to
    raise. Whether it fails depends on the pair alone, never on the drafted tuple: solving only the system that a tuple
    needs, as the paper suggests, and falling back where the other one fails would bias the output. `limit`: largest
    truncation; None for the limits of `global_resolution`.
    """

    tolerance: float = 1e-3
    fallback: str | None = None
    iterations: int = ITERATIONS
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.fallback is not None and (not isinstance(self.fallback, str) or self.fallback not in FALLBACKS):
            raise AdviceError(f"no fallback {quote(self.fallback)}; choose None or one of {', '.join(FALLBACKS)}")
        if not is_number(self.tolerance) or not 0 < self.tolerance < 1:
            raise AdviceError(
                f"tolerance {quote(self.tolerance)} is out of range; use a number in (0, 1), such as 1e-3"
            )
        check_integer(self.iterations, "iterations", 0)
        if self.limit is not None:
            check_integer(self.limit, "limit", 0)

    @property
    def within(self) -> float:
        """The total variation that the law of the emitted token may have: half of its 1-norm (Lemma 6.6)."""
        return 7.5 * self.tolerance

    def __call__(self, target: Rows, draft: Rows, drafted: Tuples, law: Law) -> ApproximateOutcome:
        """Row by row; every different pair of distributions in the batch is solved once (Global Resolution, eq. 18)."""

        def solve(p: Tensor, q: Tensor, count: int) -> Solution:
            return self.node(p.numpy(), q.numpy(), count, law.draft_probability)

        outcome, nodes = row_by_row(solve, target, draft, drafted, law)
        failed = torch.tensor(
            [node is not None and node.resolution.failure is not None for node in nodes], dtype=torch.bool
        )
        deviation = torch.tensor([node.deviation if node else 0.0 for node in nodes], dtype=torch.float64)
        failed, deviation = (x.reshape(target.shape[:-1]).to(target.device) for x in (failed, deviation))
        short = (1 - target.double().sum(-1)).clamp(min=0)  # rounding: a full target counts as one
        deviation = deviation + short * (short <= MAX_MISSING_MASS)
        if failed.any():
            outcome = self._instead(nodes, outcome, target, draft, law, failed)
        return ApproximateOutcome(outcome, deviation.masked_fill(failed, 0.0), ~failed)

    def node(self, target: np.ndarray, draft: np.ndarray, drafts: int, draft_probability: float = 1.0) -> Solution:
        """The solution for one pair: with probability 1 - a nothing is drafted, which is the problem of target / a."""
        a = draft_probability
        resolution = resolve(target / a, draft / draft.sum(), drafts, self.tolerance, self.iterations, self.limit)
        return Solution(
            resolution, next_target_of(target, a * resolution.split.residual), float(a * resolution.deviation)
        )

    def _instead(
        self, nodes: list[Solution | None], outcome: Outcome, target: Tensor, draft: Tensor, law: Law, failed: Tensor
    ) -> Outcome:
        """The fallback's outcome in the rows that failed, or an error that says what failed."""
        if self.fallback is None:
            reason = next(node.resolution.failure for node in nodes if node and node.resolution.failure)
            raise ResolutionFailure(
                f"Global Resolution failed: {reason}. Choose what to do then with fallback="
                f"{', '.join(repr(name) for name in FALLBACKS)}; or use the rule lorenz, which is exact and never fails"
            )
        other = SCHEMES[f"iid:{self.fallback}"].rule(target, draft, outcome.drafted, law)
        accept = torch.where(failed[..., None], other.accept, outcome.accept)
        return Outcome(accept, torch.where(failed[..., None], other.residual, outcome.residual), outcome.drafted)
