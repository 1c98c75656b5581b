"""The Lorenz rule without a sort: tokens of about the same p/q share a bin, and the schedule is one of bins (ours).

On a CPU the sort is cheap. On a GPU, where a vocabulary is sorted in many passes and added up in one, bins are prefix
sums alone, and what follows them is as long as there are bins.

**Theorem.** Let b(i) be the bin of token i, and e_b at most p_i / q_i for every token of bin b. Then p'_i = e_b(i) q_i
is at most p_i, and all tokens of a bin have one ratio p'/q. The Lorenz schedule runs tokens of one ratio as ties: they
share each moment in proportion to q. So for the target p' it is the schedule of the bins, as tokens of draft mass
Q_b = sum q_i and target e_b Q_b, and emits token i with probability r_i = r_b q_i / Q_b <= p'_i <= p_i. Whoever draws
from the remainder of the true target, R = p - r, is lossless, whatever the bins.

**What is lost.** Ratios are cut at n, the number of drafts, for nothing emits a token with more than n q_i. Below that
the bins are `(1 - epsilon)` apart, down to 1/bins, with epsilon = 1 - (n bins)^(-1/bins). Any rule for p, followed with
probability 1 - epsilon, is one for (1 - epsilon) p, so that

    alpha*(p) >= alpha >= (1 - epsilon) alpha*(p) - 1/bins.

With 4,096 bins and 4 drafts it is 0.24 % of the optimum and 0.02 points at most. e_b is the smallest ratio that is
found in the bin: a bin of one token, or of equal ratios, loses nothing.
"""

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import check_integer
from multidraft.verification.law import Staged
from multidraft.verification.outcome import Outcome
from multidraft.verification.precision import MIN_DRAFT_PROBABILITY, SMALLEST_NORMAL, Rates, Rows, Tuples
from multidraft.verification.rules.lorenz import in_three_stages, lorenz
from multidraft.verification.rules.lorenz_schedule import Schedule, phases


@dataclass(frozen=True)
class BinnedLorenz:
    """The rule with so many bins."""

    bins: int = 4096

    def __post_init__(self) -> None:
        check_integer(self.bins, "bins", 2)

    def __call__(self, target: Rows, draft: Rows, drafted: Tuples, law: Staged) -> Outcome:
        """The Lorenz rule; tokens are sorted where there are no more than bins."""
        if target.shape[-1] <= self.bins:
            return lorenz(target, draft, drafted, law)
        return in_three_stages(target, draft, drafted, law, partial(binned_schedule, self.bins))

    def least(self, optimum: Rates, drafts: int) -> Rates:
        """What it accepts at least of i.i.d. drafts."""
        return optimum * (drafts * self.bins) ** (-1 / self.bins) - 1 / self.bins


@dataclass(frozen=True)
class Binned:
    """The schedule of bins, for tokens."""

    target: Rows
    draft: Rows
    bin: Int[Tensor, "*batch vocabulary"]
    edge: Float[Tensor, "*batch bins"]  # e_b
    plan: Schedule  # of bins

    def rounding(self) -> Rows:
        """p - p'."""
        return (self.target - self.edge.gather(-1, self.bin) * self.draft).clamp_(min=0)

    def accept(self, draws: Tuples) -> Float[Tensor, "*batch width"]:
        """Probability of emitting each draw."""
        return self.plan.accept(torch.where(draws >= 0, self.bin.gather(-1, draws.clamp(min=0)), -1))

    def remainder(self) -> Rows:
        """R = p - r = (p - p') + (p' - r), in positive terms; of a bin, each token has its share."""
        of_bins = self.plan.remainder() / self.plan.draft.clamp(min=SMALLEST_NORMAL)
        return self.rounding().add_(of_bins.gather(-1, self.bin).mul_(self.draft))


def binned_schedule(
    bins: int, target: Rows, draft: Rows, count: Int[Tensor, "*batch"], draft_probability: float = 1.0
) -> Binned:
    """The schedule for `count` i.i.d. drafts; what is never drafted, or has hardly any target, is in the last bin."""
    p, q = target.double(), draft.double()
    total = q.sum(-1, keepdim=True)
    q = q / total.clamp(min=SMALLEST_NORMAL)
    q = q * (q > MIN_DRAFT_PROBABILITY)
    count = torch.where(total[..., 0] > 0, count, 0)
    top = count.clamp(min=1)[..., None].double()
    ratio = torch.minimum(p / q.clamp(min=MIN_DRAFT_PROBABILITY), top) * (q > 0)
    apart = (top * bins).log_() / bins  # bins are so far apart, in logarithms
    place = ((top / ratio.clamp(min=SMALLEST_NORMAL)).log_() / apart).clamp_(max=bins).long()
    edge = top * (-apart * torch.arange(1, bins + 2, device=p.device)).exp_()
    edge[..., -1] = 0.0
    edge = edge.scatter_reduce_(-1, place, ratio, "amin", include_self=False).cummin(-1).values
    Q = torch.zeros_like(edge).scatter_add_(-1, place, q)
    P = edge * Q
    order = torch.arange(bins + 1, device=p.device).expand_as(Q)
    plan = Schedule(P, Q, order, *phases(edge, Q, P, count, draft_probability))
    return Binned(p, q, place, edge, plan)
